// A fake libpmix.so.2: a test sets the answers of its server to rank 1.
#pragma once

#include <pmix.h>

/// Sets the value of every key.
extern "C" __attribute__((visibility("default"))) void fake_pmix_set_value(pmix_data_type_t type, char* text);

/// Calls of the program since the last fake_pmix_set_status().
struct FakePmixSeen {
  int fences;
  int fence_timeout_s;  ///< 0: no limit
  int get_timeout_s;
  char put[2048];  ///< the last text that was put and committed
};

/// Sets the return values of PMIx_Put, PMIx_Fence and PMIx_Get.
extern "C" __attribute__((visibility("default"))) void fake_pmix_set_status(pmix_status_t put, pmix_status_t fence,
                                                                            pmix_status_t get);
extern "C" __attribute__((visibility("default"))) const FakePmixSeen* fake_pmix_seen();
