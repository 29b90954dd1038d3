// See blocks.h.

#include "blocks.h"

#include <link.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdarg>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace stand_in {

// On a system thread that runs blocks, the only thread-local variable beside the kernels' shared memory; `SharedMemory`
// relies on that.
thread_local Thread *current = nullptr;

namespace {

constexpr size_t STACK_BYTES = 256 << 10;
constexpr size_t DYNAMIC_SHARED_BYTES = 256 << 10;

bool backward() {
    static const bool value = [] {
        const char *order = std::getenv("STAND_IN_ORDER");
        return order && std::strcmp(order, "backward") == 0;
    }();
    return value;
}

// The turn-th of count things.
unsigned in_order(unsigned turn, unsigned count) { return backward() ? count - 1 - turn : turn; }

// Memory between two pages that can't be touched: running out of it stops the program.
class GuardedMemory {
  public:
    explicit GuardedMemory(size_t size) : bytes(size) {
        void *mapped = mmap(nullptr, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapped == MAP_FAILED) stop("no address space for %zu bytes", bytes);
        start = static_cast<unsigned char *>(mapped) + page;
        mprotect(start, bytes, PROT_READ | PROT_WRITE);
    }
    GuardedMemory(const GuardedMemory &) = delete;
    ~GuardedMemory() { munmap(start - page, bytes + 2 * page); }

    const size_t bytes;
    unsigned char *start;

  private:
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
};

// The `__shared__` arrays of all kernels as this system thread has them: what the loader made for this library's
// thread-local variables.
class SharedMemory {
  public:
    SharedMemory() {
        dl_iterate_phdr(
            [](dl_phdr_info *library, size_t, void *result) {
                auto *start = static_cast<unsigned char *>(library->dlpi_tls_data);
                auto *known = reinterpret_cast<unsigned char *>(&current);
                for (int i = 0; i < library->dlpi_phnum; i++) {
                    size_t bytes = library->dlpi_phdr[i].p_memsz;
                    if (library->dlpi_phdr[i].p_type != PT_TLS || known < start || known >= start + bytes) continue;
                    auto *words = reinterpret_cast<uint64_t *>(start);
                    static_cast<SharedMemory *>(result)->all = {words, words + bytes / sizeof *words};
                }
                return 0;
            },
            this);
    }

    // Before a kernel's first block nothing is known of what it uses.
    void poison_all() { poison(used = all); }

    // After it, only what that block used is poisoned again: all of it is much, and there are many blocks.
    void note_used() {
        Thread *kept = current;
        std::memset(&current, POISON, sizeof current);
        auto poisoned = [](uint64_t word) { return word == ~uint64_t(0); };
        while (used.start < used.end && poisoned(*used.start)) used.start++;
        while (used.start < used.end && poisoned(used.end[-1])) used.end--;
        current = kept;
    }

    void poison_used() { poison(used); }

  private:
    struct Range {
        uint64_t *start = nullptr, *end = nullptr;
    };

    static void poison(Range range) {
        Thread *kept = current;
        std::memset(range.start, POISON, size_t(range.end - range.start) * sizeof *range.start);
        current = kept;
    }

    Range all, used;
};

// The compiler's own jumps save three registers and check nothing; C's save all, and refuse to change the stack where
// they are checked.
[[noreturn]] __attribute__((noinline)) void leave(void **to) { __builtin_longjmp(to, 1); }

// Their callers are come back to, and so must keep their frames. A compiler that doesn't know would have the last call of
// a function take the frame's place; it doesn't for one that is `noreturn`.
[[noreturn]] __attribute__((noinline)) void begin(const ucontext_t &at) {
    setcontext(&at);
    std::abort();
}

// Runs the threads of one block after another for good.
void fiber_main() {
    for (;;) {
        here().block->launch->body();
        wait_at(At::end);
    }
}

// A thread of a block, and the stack it runs on.
struct Fiber {
    Fiber() {
        getcontext(&beginning);
        beginning.uc_stack.ss_sp = stack.start;
        beginning.uc_stack.ss_size = stack.bytes;
        beginning.uc_link = nullptr;
        makecontext(&beginning, fiber_main, 0);
    }

    // Lets the thread run to its next barrier.
    __attribute__((noinline)) void resume() {
        current = &thread;
        if (__builtin_setjmp(thread.block->scheduler) != 0) return;
        if (begun) leave(thread.context);
        begun = true;
        begin(beginning);
    }

    Thread thread{};

  private:
    GuardedMemory stack{STACK_BYTES};
    ucontext_t beginning;
    bool begun = false;
};

const char *name(At at) {
    switch (at) {
    case At::start: return "has not begun";
    case At::warp_barrier: return "waits for its warp";
    case At::block_barrier: return "waits at __syncthreads";
    case At::end: return "has left";
    }
    return "";
}

// Runs blocks, one at a time, on one system thread.
class BlockRunner {
  public:
    void begin(const Launch &launch) {
        block.launch = &launch;
        block.dim = launch.block;
        block.grid_dim = launch.grid;
        count = launch.block.x * launch.block.y * launch.block.z;
        while (fibers.size() < count) fibers.push_back(std::make_unique<Fiber>());
        warps.resize((count + WARP - 1) / WARP);
        first = true;
    }

    void run(uint3 index) {
        if (first) statics.poison_all();
        else statics.poison_used();
        // Its end is where the memory ends, but for what alignment takes.
        size_t dynamic_bytes = (block.launch->dynamic_shared_bytes + 127) / 128 * 128;
        block.dynamic_shared = dynamics.start + dynamics.bytes - dynamic_bytes;
        std::memset(block.dynamic_shared, POISON, dynamic_bytes);
        block.index = index;
        for (unsigned i = 0; i < count; i++) set_up(i);

        while (run_to_block_barrier() != At::end) {}

        current = nullptr;
        if (first) statics.note_used();
        first = false;
    }

  private:
    void set_up(unsigned i) {
        Thread &thread = fibers[i]->thread;
        uint3 dim = block.dim;
        thread.index = {i % dim.x, i / dim.x % dim.y, i / dim.x / dim.y};
        thread.lane = i % WARP;
        thread.lanes = std::min(WARP, count - i / WARP * WARP);
        thread.exchanges = 0;
        thread.at = At::start;
        thread.block = &block;
        thread.warp = &warps[i / WARP];
    }

    At run_to_block_barrier() {
        for (unsigned turn = 0; turn < warps.size(); turn++) {
            unsigned from = in_order(turn, unsigned(warps.size())) * WARP;
            unsigned lanes = std::min(WARP, count - from);
            do {
                for (unsigned lane = 0; lane < lanes; lane++) fibers[from + in_order(lane, lanes)]->resume();
            } while (together(from, lanes) == At::warp_barrier);
        }
        return together(0, count);
    }

    // Where all of these threads are.
    At together(unsigned from, unsigned number) {
        At at = fibers[from]->thread.at;
        for (unsigned i = from + 1; i < from + number; i++) {
            if (fibers[i]->thread.at == at) continue;
            current = &fibers[i]->thread;
            uint3 other = fibers[from]->thread.index;
            stop("%s, and thread (%u, %u, %u) %s", name(fibers[i]->thread.at), other.x, other.y, other.z, name(at));
        }
        return at;
    }

    Block block{};
    unsigned count = 0;
    bool first = true;
    std::vector<std::unique_ptr<Fiber>> fibers;
    std::vector<Warp> warps;
    GuardedMemory dynamics{DYNAMIC_SHARED_BYTES};
    SharedMemory statics;
};

// The system threads that run blocks. They stay until the program ends: their fibers and shared memory are theirs.
class Workers {
  public:
    Workers() {
        const char *wanted = std::getenv("STAND_IN_THREADS");
        count = wanted ? unsigned(std::max(1, std::atoi(wanted))) : 2;
        for (unsigned worker = 0; worker < count; worker++) std::thread([=] { work(worker); }).detach();
    }

    void run(const Launch &next) {
        std::unique_lock<std::mutex> lock(mutex);
        launch = &next;
        blocks = next.grid.x * next.grid.y * next.grid.z;
        begun = 0;
        busy = std::min(count, blocks);
        number++;
        wake.notify_all();
        finished.wait(lock, [&] { return busy == 0; });
    }

  private:
    void work(unsigned worker) {
        BlockRunner runner;
        unsigned done = 0;
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            wake.wait(lock, [&] { return number != done; });
            done = number;
            if (worker >= blocks) continue;
            lock.unlock();
            runner.begin(*launch);
            for (unsigned turn; (turn = begun++) < blocks;) {
                unsigned i = in_order(turn, blocks);
                uint3 grid = launch->grid;
                runner.run({i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y});
            }
            lock.lock();
            if (--busy == 0) finished.notify_one();
        }
    }

    std::mutex mutex;
    std::condition_variable wake, finished;
    const Launch *launch = nullptr;
    unsigned count = 0, blocks = 0, busy = 0, number = 0;
    std::atomic<unsigned> begun{0};
};

} // namespace

void run(const Launch &launch) {
    // Never destroyed: its threads may be waiting when the program ends.
    static Workers &workers = *new Workers;
    if (launch.dynamic_shared_bytes > DYNAMIC_SHARED_BYTES)
        stop("kernel %s wants %zu bytes of dynamic shared memory", launch.kernel, launch.dynamic_shared_bytes);
    workers.run(launch);
}

void wait_at(At barrier) {
    Thread &thread = here();
    thread.at = barrier;
    if (__builtin_setjmp(thread.context) == 0) leave(thread.block->scheduler);
}

std::string place() {
    if (!current) return "the host";
    uint3 block = current->block->index, thread = current->index;
    char text[256];
    std::snprintf(text, sizeof text, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u)",
                  current->block->launch->kernel, block.x, block.y, block.z, thread.x, thread.y, thread.z);
    return text;
}

void stop(const char *format, ...) {
    char text[512];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    std::fprintf(stderr, "stand-in: %s: %s\n", place().c_str(), text);
    std::abort();
}

} // namespace stand_in
