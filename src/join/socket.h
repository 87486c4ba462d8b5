// The few blocking socket helpers that start-up needs. The data path has its own (transports/tcp).
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <shoal/status.h>

#include "src/base/descriptor.h"

namespace shoal {

/// An address as the system's functions take it: an IPv6 address may stand in brackets, as it does before a port.
std::string without_brackets(const std::string& host);
/// SHOAL_HOST_ADDRESS without brackets; empty where it is not set.
std::string host_address_setting();
/// "10.0.0.1:4711", "[::1]:4711".
std::string host_and_port(const std::string& host, int port);

/// The numeric address by which other hosts reach this one: SHOAL_HOST_ADDRESS, else that of SHOAL_SOCKET_IFNAME, else the
/// first interface that is up and not a loopback, bridges of containers and virtual machines last, else 127.0.0.1.
std::string own_address();

/// A TCP port of `host` that nobody listens on right now.
Result<int> free_port(const std::string& host);

/// Raises this process's soft limit of open files to its hard limit, the first time that it is called. A rank has a few
/// descriptors for each peer, and many systems start processes with a soft limit of 1,024.
void raise_descriptor_limit();

/// system_error(); where descriptors have run out it says what to do.
Status descriptor_error(std::string_view what, int error);
/// Whether no more descriptors or no more memory for them are to be had: it may pass.
bool is_short_of_descriptors(int error) noexcept;

/// The port that `socket` listens on.
Result<int> port_of(const Descriptor& socket);

/// Listens on `host`:`port`; where `host` is no address of this host, or a name that leads to its loopback only, on that of
/// SHOAL_HOST_ADDRESS or SHOAL_SOCKET_IFNAME, or on every one where neither is set or `host` is empty. Waits for a taken port
/// for a second: it may be that of a connection (one that ended in the last minute keeps it, too). Errors: system_error
/// ("listen on 10.0.0.1:4711: Address already in use").
Result<Descriptor> listen_on(const std::string& host, int port);

/// Connects, retrying while the other side is not there yet, until the deadline (timeout).
Result<Descriptor> connect_to(const std::string& host, int port, std::chrono::steady_clock::time_point deadline);

/// For how long the other host may be silent before a connection here ends: SHOAL_LOST_AFTER. connect_to() sees to it.
std::chrono::milliseconds silence_limit();

/// Moves exactly so many bytes or fails: timeout at the deadline, peer_failed at the end of the stream or where the other side
/// or its host is gone.
Status send_all(int fd, const void* data, std::size_t bytes, std::chrono::steady_clock::time_point deadline);
Status receive_all(int fd, void* data, std::size_t bytes, std::chrono::steady_clock::time_point deadline);
/// Fills a part of `target`, at least a byte, or fails as above; how much it was.
Result<std::size_t> receive_some(int fd, std::span<std::byte> target, std::chrono::steady_clock::time_point deadline);

}  // namespace shoal
