// The connections that a rank of the test makes: which of them are held up, and what is said on them.
#pragma once

#include <string>

#include "tests/hostile/board.h"

namespace shoal::hostile {

/// From now on what this process says first on connections of its own is written down on the board, as somebody who listens on
/// the way would.
void watch_ways(Board& board);

/// Of the connections of this process to that address only so many get through before the stage; the others are refused, as by
/// a host on which nobody listens yet, so the library tries again. Thread rule: any thread.
void hold_up(const std::string& address, int let_through, int until_stage);

}  // namespace shoal::hostile
