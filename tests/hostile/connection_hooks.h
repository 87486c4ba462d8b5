// Hooks on the connections that a rank makes: they are recorded, and may be held back.
#pragma once

#include <string>

#include "tests/hostile/shared_state.h"

namespace shoal::hostile {

/// Records from now on the first bytes that this process sends on its own connections, as an eavesdropper would.
void record_connections(SharedState& state);

/// Lets only `let_through` connections of this process to `address` pass before stage `until_stage`. Others fail with
/// ECONNREFUSED, as if the peer did not listen yet, so the library retries. Thread rule: any thread.
void hold_back(const std::string& address, int let_through, int until_stage);

}  // namespace shoal::hostile
