// A libpmix.so.2 whose server says to rank 1 what a test wants to be said.
#pragma once

#include <pmix.h>

/// What every key has as its value from now on.
extern "C" __attribute__((visibility("default"))) void fake_pmix_says(pmix_data_type_t type, char* text);
