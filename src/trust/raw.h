// Bytes in the form that libsodium takes.
#pragma once

#include <cstddef>

namespace shoal {

inline unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }
inline const unsigned char* raw(const void* bytes) { return static_cast<const unsigned char*>(bytes); }

}  // namespace shoal
