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

/// `host` as the system's functions expect it: without the brackets in which an IPv6 address stands before a port.
std::string without_brackets(const std::string& host);
/// SHOAL_HOST_ADDRESS without brackets; empty where it is not set.
std::string host_address_setting();
/// "10.0.0.1:4711", "[::1]:4711".
std::string host_and_port(const std::string& host, int port);

/// The numeric address by which other hosts reach this one: SHOAL_HOST_ADDRESS, else that of SHOAL_SOCKET_IFNAME, else the
/// first interface that is up and not a loopback, bridges of containers and virtual machines last, else 127.0.0.1.
std::string own_address();

/// A TCP port of `host` on which no process listens now.
Result<int> free_port(const std::string& host);

/// The port that `socket` listens on.
Result<int> port_of(const Descriptor& socket);

/// Listens on `host`:`port`. Where `host` is not an address of this host, or a name that resolves to its loopback only, listens
/// on the address of SHOAL_HOST_ADDRESS or SHOAL_SOCKET_IFNAME instead, or on every address where neither is set or `host` is
/// empty. Waits up to a second for a port in use: a connection may use it (also one that ended in the last minute). Errors:
/// system_error ("listen on 10.0.0.1:4711: Address already in use").
Result<Descriptor> listen_on(const std::string& host, int port);

/// Connects. Retries until the deadline (timeout) while the server does not listen yet; where it `has_listened`, and its host
/// answers that nobody listens there, it has ended (peer_failed).
Result<Descriptor> connect_to(const std::string& host, int port, std::chrono::steady_clock::time_point deadline,
                              bool has_listened = false);

/// Whether the process at the other end of a Unix socket runs as the same user as this one.
bool is_of_same_user(int socket) noexcept;

/// How long the peer's host may be silent before a connection of connect_to() ends: SHOAL_LOST_AFTER.
std::chrono::milliseconds silence_limit();

/// Moves exactly `bytes` bytes or fails: timeout at the deadline, peer_failed at the end of the stream or where the peer or its
/// host is gone.
Status send_all(int fd, const void* data, std::size_t bytes, std::chrono::steady_clock::time_point deadline);
Status receive_all(int fd, void* data, std::size_t bytes, std::chrono::steady_clock::time_point deadline);
/// Fills a part of `target`, at least one byte, and returns its size, or fails as above.
Result<std::size_t> receive_some(int fd, std::span<std::byte> target, std::chrono::steady_clock::time_point deadline);

}  // namespace shoal
