#include "tests/fuzz/fake_pmix.h"

#include <cstring>

namespace {

pmix_value_t value;
pmix_status_t put_answer = PMIX_SUCCESS;
pmix_status_t fence_answer = PMIX_SUCCESS;
pmix_status_t get_answer = PMIX_SUCCESS;
FakePmixSeen seen{};
char uncommitted[sizeof seen.put] = {};

int timeout_of(const pmix_info_t* infos, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (std::strcmp(infos[i].key, PMIX_TIMEOUT) == 0 && infos[i].value.type == PMIX_INT) return infos[i].value.data.integer;
  }
  return 0;
}

}  // namespace

void fake_pmix_set_value(pmix_data_type_t type, char* text) {
  std::memset(&value, 0, sizeof value);
  value.type = type;
  value.data.string = text;
}

void fake_pmix_set_status(pmix_status_t put, pmix_status_t fence, pmix_status_t get) {
  put_answer = put;
  fence_answer = fence;
  get_answer = get;
  seen = {};
}

const FakePmixSeen* fake_pmix_seen() { return &seen; }

pmix_status_t PMIx_Init(pmix_proc_t* self, pmix_info_t* /*info*/, std::size_t /*infos*/) {
  std::memset(self, 0, sizeof *self);
  self->rank = 1;
  return PMIX_SUCCESS;
}

pmix_status_t PMIx_Get(const pmix_proc_t* /*of*/, const char* /*key*/, const pmix_info_t* info, std::size_t infos,
                       pmix_value_t** found) {
  seen.get_timeout_s = timeout_of(info, infos);
  *found = &value;
  return get_answer;
}

pmix_status_t PMIx_Put(pmix_scope_t /*scope*/, const char* /*key*/, pmix_value_t* given) {
  std::strncpy(uncommitted, given->data.string, sizeof uncommitted - 1);
  return put_answer;
}

pmix_status_t PMIx_Commit() {
  std::memcpy(seen.put, uncommitted, sizeof seen.put);
  return PMIX_SUCCESS;
}

pmix_status_t PMIx_Fence(const pmix_proc_t* /*ranks*/, std::size_t /*count*/, const pmix_info_t* info, std::size_t infos) {
  ++seen.fences;
  seen.fence_timeout_s = timeout_of(info, infos);
  return fence_answer;
}

pmix_status_t PMIx_Finalize(const pmix_info_t* /*info*/, std::size_t /*infos*/) { return PMIX_SUCCESS; }
