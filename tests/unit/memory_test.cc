// Shared memory for users: shoal::mem_alloc, shoal_mem_alloc and the arena behind them.
#include <shoal/memory.h>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include <shoal/shoal.h>

#include "transports/shm/arena.h"

namespace shoal {
namespace {

TEST(MemAlloc, IsZeroAlignedAndWritable) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{4097}, std::size_t{5} << 20}) {
    const Result<void*> memory = mem_alloc(bytes);
    ASSERT_TRUE(memory.ok()) << memory.status().to_string();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*memory) % 4096, 0U);
    auto* first = static_cast<unsigned char*>(*memory);
    for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(first[i], 0);
    std::memset(first, 0xff, bytes);
    EXPECT_TRUE(mem_free(*memory).ok());
    const Result<void*> again = mem_alloc(bytes);
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(static_cast<unsigned char*>(*again)[bytes - 1], 0) << "reused memory is zero";
    EXPECT_TRUE(mem_free(*again).ok());
  }
}

TEST(MemAlloc, RefusesInvalidArguments) {
  EXPECT_EQ(mem_alloc(0).status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(mem_alloc(std::size_t{1} << 46).status().code(), StatusCode::system_error);
  EXPECT_EQ(mem_alloc(~std::size_t{0}).status().code(), StatusCode::system_error);
  int on_the_stack = 0;
  EXPECT_EQ(mem_free(&on_the_stack).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(mem_free(nullptr).ok());
  const Result<void*> memory = mem_alloc(64);
  ASSERT_TRUE(memory.ok());
  EXPECT_EQ(mem_free(static_cast<std::byte*>(*memory) + 1).code(), StatusCode::invalid_argument);
  EXPECT_TRUE(mem_free(*memory).ok());
  EXPECT_EQ(mem_free(*memory).code(), StatusCode::invalid_argument) << "twice";
  void* from_c = nullptr;
  EXPECT_EQ(shoal_mem_alloc(0, &from_c), SHOAL_INVALID_ARGUMENT);
  EXPECT_EQ(shoal_mem_alloc(8, nullptr), SHOAL_INVALID_ARGUMENT);
  ASSERT_EQ(shoal_mem_alloc(8, &from_c), SHOAL_OK);
  EXPECT_EQ(shoal_mem_free(from_c), SHOAL_OK);
}

TEST(MemAlloc, BlocksNeverOverlapAndAreAllFreed) {
  struct Piece {
    unsigned char* memory;
    std::size_t bytes;
    unsigned char mark;
  };
  std::mt19937 random(1);
  std::vector<Piece> pieces;
  const Result<void*> before = mem_alloc(std::size_t{8} << 20);
  ASSERT_TRUE(before.ok());
  ASSERT_TRUE(mem_free(*before).ok());
  for (int i = 0; i < 2000; ++i) {
    if (pieces.size() < 40 && random() % 2 == 0) {
      const std::size_t bytes = 1 + random() % 20'000;
      const Result<void*> memory = mem_alloc(bytes);
      ASSERT_TRUE(memory.ok());
      pieces.push_back({static_cast<unsigned char*>(*memory), bytes, static_cast<unsigned char>(1 + random() % 255)});
      std::memset(pieces.back().memory, pieces.back().mark, bytes);
    } else if (!pieces.empty()) {
      const std::size_t which = random() % pieces.size();
      const Piece piece = pieces[which];
      for (std::size_t k = 0; k < piece.bytes; ++k) ASSERT_EQ(piece.memory[k], piece.mark);
      ASSERT_TRUE(mem_free(piece.memory).ok());
      pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  for (const Piece& piece : pieces) ASSERT_TRUE(mem_free(piece.memory).ok());
  const Result<void*> after = mem_alloc(std::size_t{8} << 20);
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(*after, *before) << "adjacent free blocks are merged";
  ASSERT_TRUE(mem_free(*after).ok());
}

TEST(MemAlloc, ForkedChildHasItsOwnArena) {
  const Result<void*> mine = mem_alloc(4096);
  ASSERT_TRUE(mine.ok());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const Result<void*> its = mem_alloc(4096);
    if (!its.ok()) ::_exit(1);
    std::memset(*its, 0xaa, 4096);
    ::_exit(mem_free(*mine).code() == StatusCode::invalid_argument ? 0 : 2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  for (std::size_t i = 0; i < 4096; ++i)
    ASSERT_EQ(static_cast<unsigned char*>(*mine)[i], 0) << "the child wrote to its own arena";
  EXPECT_TRUE(mem_free(*mine).ok());
}

TEST(Arena, FindsOffsetsOfItsOwnMemoryOnly) {
  shm::Arena* arena = shm::Arena::instance();
  ASSERT_NE(arena, nullptr);
  const Result<void*> memory = arena->allocate(4096);
  ASSERT_TRUE(memory.ok());
  const auto offset = arena->offset_of(*memory, 4096);
  ASSERT_TRUE(offset.has_value());
  EXPECT_EQ(arena->base() + *offset, *memory);
  EXPECT_FALSE(arena->offset_of(arena->base() + arena->size_bytes() - 1, 2).has_value()) << "reaches beyond the end";
  EXPECT_FALSE(arena->offset_of(arena->base() - 1, 1).has_value());
  int on_the_stack = 0;
  EXPECT_FALSE(arena->offset_of(&on_the_stack, sizeof on_the_stack).has_value());
  EXPECT_TRUE(arena->free(*memory).ok());
}

}  // namespace
}  // namespace shoal
