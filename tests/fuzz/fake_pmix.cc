#include "tests/fuzz/fake_pmix.h"

#include <cstring>

namespace {
pmix_value_t value;
}  // namespace

void fake_pmix_says(pmix_data_type_t type, char* text) {
  std::memset(&value, 0, sizeof value);
  value.type = type;
  value.data.string = text;
}

pmix_status_t PMIx_Init(pmix_proc_t* self, pmix_info_t* /*info*/, std::size_t /*infos*/) {
  std::memset(self, 0, sizeof *self);
  self->rank = 1;
  return PMIX_SUCCESS;
}

pmix_status_t PMIx_Get(const pmix_proc_t* /*of*/, const char* /*key*/, const pmix_info_t* /*info*/, std::size_t /*infos*/,
                       pmix_value_t** found) {
  *found = &value;
  return PMIX_SUCCESS;
}

pmix_status_t PMIx_Put(pmix_scope_t /*scope*/, const char* /*key*/, pmix_value_t* /*given*/) { return PMIX_SUCCESS; }
pmix_status_t PMIx_Commit() { return PMIX_SUCCESS; }
pmix_status_t PMIx_Fence(const pmix_proc_t* /*ranks*/, std::size_t /*count*/, const pmix_info_t* /*info*/,
                         std::size_t /*infos*/) {
  return PMIX_SUCCESS;
}
pmix_status_t PMIx_Finalize(const pmix_info_t* /*info*/, std::size_t /*infos*/) { return PMIX_SUCCESS; }
