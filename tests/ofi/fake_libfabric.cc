// A shared library that replaces libfabric in tests: one provider with one card, which opens an endpoint and moves no data.
#include "tests/ofi/fake_libfabric.h"

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace {

using shoal::rails::testing::FakeLibfabric;

constexpr int kEmulatedWrite = -0x0efa0000 + 2;

FakeLibfabric control;

int close_nothing(fid*) { return 0; }
int bind_nothing(fid*, fid*, std::uint64_t) { return 0; }
int enable_endpoint(fid*, int command, void*) {
  if (command != FI_ENABLE) return -FI_ENOSYS;  // no descriptor to wait on
  control.enabled = true;
  return 0;
}

bool is_known(int option) {
  const auto first = control.known.begin();
  return std::find(first, first + control.options, option) != first + control.options;
}

int get_option(fid*, int level, int option, void* value, std::size_t* size) {
  control.gets += option == kEmulatedWrite ? 1 : 0;
  if (level != FI_OPT_ENDPOINT || option != kEmulatedWrite || !is_known(option)) return control.unknown;
  if (*size < sizeof(bool)) return -FI_ETOOSMALL;
  *static_cast<bool*>(value) = control.emulates_writes;
  *size = sizeof(bool);
  return 0;
}

int set_option(fid*, int level, int option, const void* value, std::size_t size) {
  control.set_after_enable |= control.enabled;
  if (control.sets < static_cast<int>(control.set.size())) {
    auto& set = control.set[static_cast<std::size_t>(control.sets++)];
    set.option = option;
    set.bytes = size;
    std::memcpy(&set.value, value, std::min(size, sizeof set.value));
  }
  return level == FI_OPT_ENDPOINT && is_known(option) ? 0 : control.unknown;
}

int name_of(fid*, void* address, std::size_t* size) {
  std::memcpy(address, "fake", std::min<std::size_t>(*size, 4));
  *size = 4;
  return 0;
}

// Only the functions that shoal calls are set; all other entries stay null.
fi_ops plain{};
fi_ops endpoint_plain{};
fi_ops_ep endpoint_options{};
fi_ops_cm endpoint_names{};
fi_ops_domain domain_calls{};
fi_ops_fabric fabric_calls{};
fi_ops_mr memory_calls{};

fid_fabric the_fabric{};
fid_domain the_domain{};
fid_cq the_queue{};
fid_av the_addresses{};
fid_ep the_endpoint{};
std::array<fid_mr, 256> the_memories{};

int open_queue(fid_domain*, fi_cq_attr* attributes, fid_cq** queue, void*) {
  control.queue_size = attributes->size;
  *queue = &the_queue;
  return 0;
}
int open_addresses(fid_domain*, fi_av_attr*, fid_av** addresses, void*) {
  *addresses = &the_addresses;
  return 0;
}
int open_endpoint(fid_domain*, fi_info*, fid_ep** endpoint, void*) {
  *endpoint = &the_endpoint;
  return 0;
}
int open_domain(fid_fabric*, fi_info*, fid_domain** domain, void*) {
  *domain = &the_domain;
  return 0;
}

// Providers that choose keys themselves (FI_MR_PROV_KEY) ignore the requested key.
int register_memory(fid*, const void*, std::size_t, std::uint64_t, std::uint64_t, std::uint64_t key, std::uint64_t,
                    fid_mr** made, void*) {
  const auto first = control.keys.begin();
  const auto last = first + control.registered;
  if ((control.mr_mode & FI_MR_PROV_KEY) == 0 && !control.takes_doubles && std::find(first, last, key) != last)
    return -FI_ENOKEY;
  if (last == control.keys.end()) return -FI_ENOMEM;
  fid_mr& memory = the_memories[static_cast<std::size_t>(control.registered)];
  memory.fid.ops = &plain;
  memory.key = key;
  control.keys[static_cast<std::size_t>(control.registered++)] = key;
  *made = &memory;
  return 0;
}

void fill_tables() {
  plain.size = sizeof plain;
  plain.close = close_nothing;
  plain.bind = bind_nothing;
  plain.control = enable_endpoint;
  endpoint_plain = plain;
  endpoint_options.size = sizeof endpoint_options;
  endpoint_options.getopt = get_option;
  endpoint_options.setopt = set_option;
  endpoint_names.size = sizeof endpoint_names;
  endpoint_names.getname = name_of;
  endpoint_names.setname = [](fid*, void*, std::size_t) { return 0; };
  domain_calls.size = sizeof domain_calls;
  domain_calls.cq_open = open_queue;
  domain_calls.av_open = open_addresses;
  domain_calls.endpoint = open_endpoint;
  fabric_calls.size = sizeof fabric_calls;
  fabric_calls.domain = open_domain;
  for (fid* each : {&the_fabric.fid, &the_domain.fid, &the_queue.fid, &the_addresses.fid}) each->ops = &plain;
  memory_calls.size = sizeof memory_calls;
  memory_calls.reg = register_memory;
  the_fabric.ops = &fabric_calls;
  the_domain.ops = &domain_calls;
  the_domain.mr = &memory_calls;
  the_endpoint.fid.ops = &endpoint_plain;
  the_endpoint.ops = &endpoint_options;
  the_endpoint.cm = &endpoint_names;
}

/// fi_info with all structures that it points to.
fi_info* make_info() {
  const auto zeros = [](auto*& pointer) {
    pointer = static_cast<std::remove_reference_t<decltype(pointer)>>(std::calloc(1, sizeof *pointer));
  };
  fi_info* info = nullptr;
  zeros(info);
  zeros(info->tx_attr);
  zeros(info->rx_attr);
  zeros(info->ep_attr);
  zeros(info->domain_attr);
  zeros(info->fabric_attr);
  return info;
}

}  // namespace

extern "C" {

FakeLibfabric* shoal_fake_libfabric() { return &control; }

std::uint32_t fi_version() { return control.version; }
const char* fi_strerror(int) { return "an error of the fake"; }

fi_info* fi_dupinfo(const fi_info* info) {
  fi_info* const copy = make_info();
  if (info == nullptr) return copy;
  copy->caps = info->caps;
  copy->mode = info->mode;
  copy->addr_format = info->addr_format;
  *copy->tx_attr = *info->tx_attr;
  *copy->rx_attr = *info->rx_attr;
  *copy->ep_attr = *info->ep_attr;
  *copy->domain_attr = *info->domain_attr;
  *copy->fabric_attr = *info->fabric_attr;
  copy->domain_attr->name = ::strdup(info->domain_attr->name);
  copy->fabric_attr->prov_name = ::strdup(info->fabric_attr->prov_name);
  return copy;
}

void fi_freeinfo(fi_info* info) {
  while (info != nullptr) {
    fi_info* const next = info->next;
    std::free(info->domain_attr->name);
    std::free(info->fabric_attr->prov_name);
    std::free(info->tx_attr);
    std::free(info->rx_attr);
    std::free(info->ep_attr);
    std::free(info->domain_attr);
    std::free(info->fabric_attr);
    std::free(info);
    info = next;
  }
}

int fi_getinfo(std::uint32_t version, const char*, const char*, std::uint64_t, const fi_info* hints, fi_info** list) {
  control.asked_version = version;
  if (version > control.version) return -FI_ENOSYS;
  fi_info* const info = make_info();
  info->caps = hints->caps;
  info->addr_format = FI_FORMAT_UNSPEC;
  info->rx_attr->size = 8192;
  info->ep_attr->max_msg_size = std::size_t{1} << 30;
  info->domain_attr->cq_data_size = 4;
  info->domain_attr->mr_mode = control.mr_mode;
  info->domain_attr->mr_key_size = control.mr_key_size;
  info->domain_attr->name = ::strdup("rdmap79s0-rdm");
  info->fabric_attr->prov_name = ::strdup(control.provider);
  *list = info;
  return 0;
}

int fi_fabric(fi_fabric_attr*, fid_fabric** fabric, void*) {
  fill_tables();
  control.enabled = false;
  *fabric = &the_fabric;
  return 0;
}
}
