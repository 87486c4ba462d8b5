#include "torch_plugin/process_group/join.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "torch_plugin/process_group/conversions.h"
#include "torch_plugin/process_group/listener.h"

namespace shoal::torch {
namespace {

constexpr int kStoreRank = 0;

/// The address of the store, which rank 0 broadcasts to the other ranks.
struct Invitation {
  std::array<char, 256> host{};
  std::uint16_t port = 0;
};

/// The store, served only at `host`: c10d by default listens on every interface.
c10::intrusive_ptr<c10d::TCPStore> serve(const std::string& host, c10d::TCPStoreOptions options) {
  const Result<Listener> listener = listen_on(host);
  TORCH_CHECK(listener.ok(), listener.status().message());
  options.isServer = true;
  options.masterListenFd = listener->socket;  // c10d now owns the socket and closes it
  options.port = listener->port;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace

Result<c10::intrusive_ptr<c10d::Store>> open_store(Communicator& communicator, std::chrono::milliseconds timeout) {
  Invitation invitation;
  c10d::TCPStoreOptions options;
  options.timeout = timeout;
  options.waitWorkers = false;
  c10::intrusive_ptr<c10d::Store> store;
  Status failure;
  try {
    if (communicator.rank() == kStoreRank) {
      const std::string host = own_address(communicator);
      TORCH_CHECK(host.size() < invitation.host.size(), "the address of this host is too long: ", host);
      auto served = serve(host, options);
      invitation.port = served->getPort();
      std::ranges::copy(host, invitation.host.begin());
      store = std::move(served);
    }
  } catch (const std::exception& error) {
    failure = Status(StatusCode::system_error, std::string("c10d's store: ") + plain_message(error));
  }
  // An empty invitation reports a failure to the other ranks.
  const Status told = communicator.broadcast(&invitation, sizeof invitation, DataType::uint8, kStoreRank);
  if (!failure.ok()) return failure;
  if (!told.ok()) return told;
  if (communicator.rank() == kStoreRank) return store;
  if (invitation.port == 0)
    return Status(StatusCode::system_error, "c10d's store: rank 0 could not serve it; see the message of rank 0");
  try {
    options.port = invitation.port;
    store = c10::make_intrusive<c10d::TCPStore>(invitation.host.data(), options);
  } catch (const std::exception& error) {
    return Status(StatusCode::system_error, std::string("c10d's store: ") + plain_message(error));
  }
  return store;
}

c10::intrusive_ptr<c10d::ProcessGroup> join_job(c10::intrusive_ptr<ProcessGroupShoal::Options> options) {
  constexpr const char* kCall = "join_job";
  if (!options) options = c10::make_intrusive<ProcessGroupShoal::Options>(Communicator::options_from_environment().timeout);
  Result<std::unique_ptr<Communicator>> made = Communicator::create(options->for_communicator());
  if (!made.ok()) throw_status(kCall, made.status());
  std::unique_ptr<Communicator> communicator = std::move(made).value();
  const int rank = communicator->rank();
  const int size = communicator->size();
  Result<c10::intrusive_ptr<c10d::Store>> store = open_store(*communicator, options->timeout);
  if (!store.ok()) throw_status(kCall, store.status());

  constexpr auto kType = c10d::ProcessGroup::BackendType::CUSTOM;
  auto group = c10::make_intrusive<c10d::ProcessGroup>(*store, rank, size);
  const auto backend =
      c10::make_intrusive<ProcessGroupShoal>(std::move(communicator), StartRound{*store, 0}, std::move(options));
  for (const c10::DeviceType device : {c10::DeviceType::CPU, c10::DeviceType::CUDA}) group->setBackend(device, kType, backend);
  group->setDefaultBackend(kType);
  group->setGroupName(kBackendName);
  return group;
}

}  // namespace shoal::torch
