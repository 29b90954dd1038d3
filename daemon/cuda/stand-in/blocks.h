// Runs a kernel's grid on the CPU. A block's threads are fibers of one system thread, which switches between them at
// barriers only; blocks are dealt out to a few system threads.
//
// STAND_IN_THREADS: how many (2 unless said).
// STAND_IN_ORDER=backward: blocks, warps and threads take their turns from the last to the first. A kernel that lacks
// a barrier may pass in one order; it hardly does in both.

#pragma once

#include <functional>
#include <string>

#include "cuda_on_cpu.h"

namespace stand_in {

struct Launch {
    const char *kernel;
    uint3 grid, block;
    size_t dynamic_shared_bytes;
    // What one thread of the grid does.
    std::function<void()> body;
};

// Returns when all of the grid has run. One launch at a time.
void run(const Launch &launch);

// The kernel, block and thread that this system thread is running.
std::string place();

// Memory that nobody has written yet holds this: NaN in every float format, and an index far out of range.
constexpr int POISON = 0xff;

} // namespace stand_in
