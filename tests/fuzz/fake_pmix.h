// A libpmix.so.2 whose server says to rank 1 what a test wants to be said.
#pragma once

#include <pmix.h>

/// What every key has as its value from now on.
extern "C" __attribute__((visibility("default"))) void fake_pmix_says(pmix_data_type_t type, char* text);

/// What the program has asked of it since the last fake_pmix_answers().
struct FakePmixSeen {
  int fences;
  int fence_timeout_s;  ///< 0: it would wait for ever
  int get_timeout_s;
  char put[2048];  ///< the last text that was put and committed
};

/// What PMIx_Put, PMIx_Fence and PMIx_Get return from now on.
extern "C" __attribute__((visibility("default"))) void fake_pmix_answers(pmix_status_t put, pmix_status_t fence,
                                                                         pmix_status_t get);
extern "C" __attribute__((visibility("default"))) const FakePmixSeen* fake_pmix_seen();
