// What a rank's two buffers hold in a call, and how they may overlap.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/schedule/program.h"

namespace shoal {

/// Sizes of a rank's input and output. 0 where the rank has no such part; in a broadcast all ranks have an output only.
struct CallBuffers {
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
  bool may_be_in_place = false;
  std::ptrdiff_t in_place_bytes = 0;  ///< in place, the input begins this many bytes after the output

  enum class Placement : std::uint8_t { apart, in_place, overlapping, missing };
  /// How `input` and `output` lie. `missing`: a buffer is null that should hold something.
  [[nodiscard]] Placement placement(const void* input, const void* output) const noexcept {
    if ((input_bytes > 0 && input == nullptr) || (output_bytes > 0 && output == nullptr)) return Placement::missing;
    if (input_bytes == 0 || output_bytes == 0) return Placement::apart;
    const auto in = reinterpret_cast<std::uintptr_t>(input);
    const auto out = reinterpret_cast<std::uintptr_t>(output);
    if (may_be_in_place && in == out + static_cast<std::uintptr_t>(in_place_bytes)) return Placement::in_place;
    return in < out + output_bytes && out < in + input_bytes ? Placement::overlapping : Placement::apart;
  }
};

/// The buffers of `rank`.
[[nodiscard]] CallBuffers call_buffers(const Collective& collective, int ranks, int rank);

}  // namespace shoal
