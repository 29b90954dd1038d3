// What the stand-in's other libraries ask of its driver.

#pragma once

#include <cstdint>
#include <functional>

namespace stand_in {

// Appends to a stream's work, which takes as long as a kernel of so many blocks; false when there is no such stream.
__attribute__((visibility("default"))) bool send(void *stream, uint64_t blocks, std::function<void()> work);

// Whether so many bytes from there on are allocated, in the context that this thread uses.
__attribute__((visibility("default"))) bool holds(uint64_t address, size_t bytes);

// What this process has of a GPU's memory, its context among it.
__attribute__((visibility("default"))) uint64_t used_bytes(int ordinal);

} // namespace stand_in
