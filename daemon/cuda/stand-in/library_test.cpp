// Tries what `driver.cpp` and `cublas.cpp` promise, with the kernel `convert_f32(out, x, count)` and PTX of our own.

#include "test.h"

#include <cstdint>
#include <string>
#include <vector>

extern "C" {
int cuInit(unsigned);
int cuDevicePrimaryCtxRetain(void **, int);
int cuDevicePrimaryCtxRelease_v2(int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize();
int cuMemGetInfo_v2(size_t *, size_t *);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemFree_v2(uint64_t);
int cuMemGetAllocationGranularity(size_t *, const void *, int);
int cuMemAddressReserve(uint64_t *, size_t, size_t, uint64_t, unsigned long long);
int cuMemAddressFree(uint64_t, size_t);
int cuMemCreate(uint64_t *, size_t, const void *, unsigned long long);
int cuMemRelease(uint64_t);
int cuMemMap(uint64_t, size_t, size_t, uint64_t, unsigned long long);
int cuMemUnmap(uint64_t, size_t);
int cuMemSetAccess(uint64_t, size_t, const void *, size_t);
int cuMemHostAlloc(void **, size_t, unsigned);
int cuMemFreeHost(void *);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemsetD8Async(uint64_t, unsigned char, size_t, void *);
int cuStreamCreate(void **, unsigned);
int cuStreamSynchronize(void *);
int cuStreamWaitEvent(void *, void *, unsigned);
int cuEventCreate(void **, unsigned);
int cuEventRecord(void *, void *);
int cuEventQuery(void *);
int cuEventSynchronize(void *);
int cuEventElapsedTime(float *, void *, void *);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuFuncSetAttribute(void *, int, int);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                   void **);
int cublasCreate_v2(void **);
int cublasDestroy_v2(void *);
int cublasSetStream_v2(void *, void *);
int cublasGemmEx(void *, int, int, int, int, int, const void *, const void *, int, int, const void *, int, int,
                 const void *, void *, int, int, int, int);
}

namespace {

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_CONTEXT = 201, INVALID_PTX = 218 };
enum { UNSUPPORTED_PTX_VERSION = 222, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, TOO_MANY_THREADS = 701 };

constexpr size_t COUNT = 1000, BYTES = COUNT * sizeof(float);

std::string ptx(const char *version, const char *target, const char *name, const char *last_parameter) {
    return std::string("//\n.version ") + version + "\n.target " + target + "\n.address_size 64\n.visible .entry " + name +
           "(\n\t.param .u64 .ptr .align 1 " + name + "_param_0,\n\t.param .u64 " + name + "_param_1,\n\t.param " +
           last_parameter + " " + name + "_param_2\n)\n.maxntid 256, 1, 1\n{\n\tret;\n}\n";
}

// A GPU that is open, a stream, and the kernel.
struct GPU {
    void *context, *stream, *function;

    GPU() {
        CHECK(cuInit(0) == 0);
        CHECK(cuDevicePrimaryCtxRetain(&context, 0) == 0);
        CHECK(cuCtxSetCurrent(context) == 0);
        CHECK(cuStreamCreate(&stream, 1) == 0);
        void *module;
        CHECK(cuModuleLoadData(&module, ptx("8.0", "sm_75", "convert_f32", ".u64").c_str()) == 0);
        CHECK(cuModuleGetFunction(&function, module, "convert_f32") == 0);
    }

    uint64_t allocate(size_t bytes = BYTES) const {
        uint64_t address;
        CHECK(cuMemAlloc_v2(&address, bytes) == 0);
        return address;
    }

    int convert(uint64_t to, uint64_t from, uint64_t count, unsigned threads = 256, unsigned shared = 0) const {
        void *parameters[] = {&to, &from, &count};
        unsigned blocks = unsigned((count + threads - 1) / threads);
        return cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, parameters, nullptr);
    }

    int wait() const { return cuStreamSynchronize(stream); }
};

// ---------------------------------------------------------------------------------------------- work

void kernel_runs() {
    GPU gpu;
    std::vector<float> in(COUNT), out(COUNT);
    for (size_t i = 0; i < COUNT; i++) in[i] = float(i);
    uint64_t from = gpu.allocate(), to = gpu.allocate();
    CHECK(cuMemcpyHtoDAsync_v2(from, in.data(), BYTES, gpu.stream) == 0);
    CHECK(gpu.convert(to, from, COUNT) == 0);
    CHECK(cuMemcpyDtoHAsync_v2(out.data(), to, BYTES, gpu.stream) == 0);
    CHECK(in == out);
}

// A program that reads before it has waited, or writes to what a copy still needs, gets wrong numbers every time.
void work_waits() {
    GPU gpu;
    void *memory;
    CHECK(cuMemHostAlloc(&memory, 2 * BYTES, 0) == 0);
    auto *pinned = static_cast<float *>(memory);
    std::vector<float> pageable(COUNT, 5);
    uint64_t from = gpu.allocate(), to = gpu.allocate();

    CHECK(cuMemcpyHtoDAsync_v2(from, pageable.data(), BYTES, gpu.stream) == 0);
    pageable.assign(COUNT, 6);
    CHECK(gpu.convert(to, from, COUNT) == 0);
    CHECK(cuMemcpyDtoHAsync_v2(pinned, to, BYTES, gpu.stream) == 0);
    CHECK(pinned[0] == 0);
    CHECK(gpu.wait() == 0);
    CHECK(pinned[0] == 5 && pinned[COUNT - 1] == 5);

    pinned[0] = 7;
    CHECK(cuMemcpyHtoDAsync_v2(from, pinned, BYTES, gpu.stream) == 0);
    pinned[0] = 8;
    CHECK(cuMemcpyDtoHAsync_v2(pageable.data(), from, BYTES, gpu.stream) == 0);
    CHECK(pageable[0] == 8);
    CHECK(cuMemFreeHost(memory) == 0);
}

void streams_wait_for_events() {
    GPU gpu;
    void *other, *first, *second, *memory;
    CHECK(cuStreamCreate(&other, 1) == 0);
    CHECK(cuEventCreate(&first, 0) == 0 && cuEventCreate(&second, 0) == 0);
    CHECK(cuMemHostAlloc(&memory, BYTES, 0) == 0);
    auto *pinned = static_cast<unsigned char *>(memory);
    uint64_t address = gpu.allocate();
    float milliseconds;

    CHECK(cuMemsetD8Async(address, 3, BYTES, gpu.stream) == 0);
    CHECK(cuEventRecord(first, gpu.stream) == 0);
    CHECK(cuMemsetD8Async(address, 4, BYTES, gpu.stream) == 0);
    CHECK(cuStreamWaitEvent(other, first, 0) == 0);
    CHECK(cuMemcpyDtoHAsync_v2(pinned, address, BYTES, other) == 0);
    CHECK(cuEventRecord(second, other) == 0);
    CHECK(cuEventElapsedTime(&milliseconds, first, second) == NOT_READY);
    int polls = 0;
    while (cuEventQuery(second) == NOT_READY) polls++;
    CHECK(polls > 0 && pinned[0] == 3);
    CHECK(cuEventElapsedTime(&milliseconds, first, second) == 0 && milliseconds >= 0);
    CHECK(gpu.wait() == 0);
}

// ---------------------------------------------------------------------------------------------- order and time

// STAND_IN_STREAMS=eager: who overwrites what is still needed, and forgot to wait for it, does so early.
void work_runs_at_once() {
    GPU gpu;
    void *other, *memory;
    CHECK(cuStreamCreate(&other, 1) == 0);
    CHECK(cuMemHostAlloc(&memory, BYTES, 0) == 0);
    auto *pinned = static_cast<unsigned char *>(memory);
    uint64_t address = gpu.allocate();
    CHECK(cuMemsetD8Async(address, 3, BYTES, other) == 0);
    CHECK(cuMemcpyDtoHAsync_v2(pinned, address, BYTES, gpu.stream) == 0);
    CHECK(pinned[0] == 3 && pinned[BYTES - 1] == 3);
    pinned[0] = 9;
    CHECK(cuMemcpyHtoDAsync_v2(address, pinned, 1, other) == 0);
    pinned[0] = 0;
    CHECK(cuMemcpyDtoHAsync_v2(pinned, address, 1, gpu.stream) == 0);
    CHECK(pinned[0] == 9);
}

// STAND_IN_STREAMS=random:1: any order that events allow, and no other.
void work_runs_in_any_order_that_events_allow() {
    GPU gpu;
    void *other, *event;
    CHECK(cuStreamCreate(&other, 1) == 0 && cuEventCreate(&event, 0) == 0);
    uint64_t address = gpu.allocate();
    auto last = [&](bool waits) {
        CHECK(cuMemsetD8Async(address, 1, 1, gpu.stream) == 0);
        CHECK(cuMemsetD8Async(address, 2, 1, gpu.stream) == 0);
        CHECK(cuEventRecord(event, gpu.stream) == 0);
        if (waits) CHECK(cuStreamWaitEvent(other, event, 0) == 0);
        CHECK(cuMemsetD8Async(address, 3, 1, other) == 0);
        CHECK(cuCtxSynchronize() == 0);
        unsigned char byte;
        CHECK(cuMemcpyDtoHAsync_v2(&byte, address, 1, gpu.stream) == 0);
        return byte;
    };
    int counts[4] = {};
    for (int i = 0; i < 100; i++) {
        counts[last(false)]++;
        CHECK(last(true) == 3);
    }
    // 1 would be a stream that doesn't keep its own order.
    CHECK(counts[1] == 0 && counts[2] > 10 && counts[3] > 10);
}

// With a clock that is simulated, a link of 1 GB/s, and blocks of 3 ms.
struct Timed : GPU {
    static constexpr size_t LARGE = 10'000'000;
    void *copies, *begin, *pinned;
    uint64_t slot = allocate(LARGE), x = allocate();

    Timed() {
        CHECK(cuStreamCreate(&copies, 1) == 0);
        CHECK(cuMemHostAlloc(&pinned, LARGE, 0) == 0);
        begin = now(stream);
    }
    static void *now(void *stream) {
        void *event;
        CHECK(cuEventCreate(&event, 0) == 0 && cuEventRecord(event, stream) == 0);
        return event;
    }
    // 10 ms, and a little for the call.
    void copy(void *on) const { CHECK(cuMemcpyHtoDAsync_v2(slot, pinned, LARGE, on) == 0); }
    // 3 ms.
    void compute() const { CHECK(convert(x, x, COUNT) == 0); }
    // Whether that moment is so many milliseconds after the beginning.
    bool is(void *moment, float expected) const {
        float milliseconds;
        CHECK(cuEventSynchronize(moment) == 0 && cuEventElapsedTime(&milliseconds, begin, moment) == 0);
        if (milliseconds < expected || milliseconds > expected + 0.1f) std::fprintf(stderr, "%f ms\n", milliseconds);
        return milliseconds >= expected && milliseconds <= expected + 0.1f;
    }
};

void copies_run_beside_kernels() {
    Timed gpu;
    gpu.copy(gpu.copies);
    void *copied = gpu.now(gpu.copies);
    for (int i = 0; i < 4; i++) gpu.compute();
    void *computed = gpu.now(gpu.stream);
    CHECK(cuStreamWaitEvent(gpu.stream, copied, 0) == 0);
    gpu.compute();
    void *both = gpu.now(gpu.stream);
    CHECK(gpu.is(copied, 10) && gpu.is(computed, 12) && gpu.is(both, 15));
}

void streams_share_what_a_gpu_has_one_of() {
    Timed gpu;
    void *other;
    CHECK(cuStreamCreate(&other, 1) == 0);
    gpu.copy(gpu.copies);
    gpu.copy(other);
    CHECK(cuMemcpyDtoHAsync_v2(gpu.pinned, gpu.slot, gpu.LARGE, gpu.stream) == 0);
    void *one = gpu.now(gpu.copies), *two = gpu.now(other), *back = gpu.now(gpu.stream);
    // The other direction has an engine of its own.
    CHECK(gpu.is(back, 10) && gpu.is(one, 10) && gpu.is(two, 20));
}

void work_begins_after_what_the_host_has_waited_for() {
    Timed gpu;
    gpu.copy(gpu.copies);
    CHECK(cuStreamSynchronize(gpu.copies) == 0);
    gpu.compute();
    void *after_waiting = gpu.now(gpu.stream);
    CHECK(gpu.is(after_waiting, 13));
    // And who asks instead of waiting learns it no sooner.
    gpu.copy(gpu.copies);
    void *copied = gpu.now(gpu.copies);
    int questions = 1;
    while (cuEventQuery(copied) == NOT_READY) questions++;
    CHECK(questions > 1000);
    gpu.compute();
    CHECK(gpu.is(gpu.now(gpu.stream), 26));
}

// ---------------------------------------------------------------------------------------------- memory

void memory_is_counted() {
    GPU gpu;
    size_t before, after, total;
    CHECK(cuMemGetInfo_v2(&before, &total) == 0 && before < total);
    uint64_t address = gpu.allocate(1 << 20);
    CHECK(cuMemGetInfo_v2(&after, &total) == 0 && after == before - (1 << 20));
    CHECK(cuMemFree_v2(address) == 0 && cuMemFree_v2(address) == INVALID_VALUE);
    CHECK(cuMemGetInfo_v2(&after, &total) == 0 && after == before);
    CHECK(cuMemAlloc_v2(&address, before + 1) == OUT_OF_MEMORY);
}

void fresh_memory_is_poison() {
    GPU gpu;
    uint64_t address = gpu.allocate();
    std::vector<float> out(COUNT);
    CHECK(cuMemcpyDtoHAsync_v2(out.data(), address, BYTES, gpu.stream) == 0);
    for (float value : out) CHECK(value != value);
}

void copies_stay_inside() {
    GPU gpu;
    std::vector<char> bytes(BYTES + 1);
    uint64_t address = gpu.allocate();
    CHECK(cuMemcpyHtoDAsync_v2(address, bytes.data(), BYTES + 1, gpu.stream) == INVALID_VALUE);
    CHECK(cuMemcpyHtoDAsync_v2(address + 1, bytes.data(), BYTES, gpu.stream) == INVALID_VALUE);
    CHECK(cuMemcpyDtoHAsync_v2(bytes.data(), address - 1, 1, gpu.stream) == INVALID_VALUE);
    CHECK(cuMemcpyHtoDAsync_v2(address + BYTES, bytes.data(), 0, gpu.stream) == 0);
}

// A range of addresses with memory in the second of its pieces.
struct Range {
    static constexpr size_t PIECE = 2 << 20;
    uint64_t start;

    Range() {
        size_t granularity;
        CHECK(cuMemGetAllocationGranularity(&granularity, on_device(), 0) == 0 && granularity == PIECE);
        CHECK(cuMemAddressReserve(&start, 4 * PIECE, 0, 0, 0) == 0);
        map(1);
    }
    // As in cuda.h: pinned memory on GPU 0.
    static const void *on_device() {
        static const int properties[8] = {1, 0, 1, 0};
        return properties;
    }
    uint64_t at(size_t piece) const { return start + piece * PIECE; }
    void map(size_t piece) const {
        static const int read_write[3] = {1, 0, 3};
        uint64_t handle;
        CHECK(cuMemCreate(&handle, PIECE, on_device(), 0) == 0);
        CHECK(cuMemMap(at(piece), PIECE, 0, handle, 0) == 0);
        CHECK(cuMemRelease(handle) == 0);
        CHECK(cuMemSetAccess(at(piece), PIECE, read_write, 1) == 0);
    }
};

void ranges_have_memory_where_it_is_mapped() {
    GPU gpu;
    size_t before, after, total;
    CHECK(cuMemGetInfo_v2(&before, &total) == 0);
    Range range;
    CHECK(cuMemGetInfo_v2(&after, &total) == 0 && after == before - range.PIECE);
    auto fills = [&](uint64_t from, size_t bytes) { return cuMemsetD8Async(from, 1, bytes, gpu.stream); };
    CHECK(fills(range.at(1), range.PIECE) == 0);
    CHECK(fills(range.at(1), range.PIECE + 1) == INVALID_VALUE && fills(range.at(1) - 1, 1) == INVALID_VALUE);
    range.map(2);
    CHECK(fills(range.at(1), 2 * range.PIECE) == 0 && gpu.wait() == 0);
    CHECK(cuMemUnmap(range.at(1) + 4096, range.PIECE) == INVALID_VALUE);
    CHECK(cuMemAddressFree(range.start, 4 * range.PIECE) == INVALID_VALUE);
    CHECK(cuMemUnmap(range.at(1), 2 * range.PIECE) == 0);
    CHECK(cuMemGetInfo_v2(&after, &total) == 0 && after == before);
    CHECK(cuMemAddressFree(range.start, 4 * range.PIECE) == 0);
}

void kernel_reads_unmapped() {
    GPU gpu;
    Range range;
    uint64_t to = gpu.allocate();
    // One block: of several, any may come first.
    CHECK(gpu.convert(to, range.at(1), 1) == 0);
    CHECK(cuMemUnmap(range.at(1), range.PIECE) == 0);
    gpu.wait();
}

// STAND_IN_FAIL_ALLOCATION=2
void second_allocation_fails() {
    GPU gpu;
    uint64_t address = gpu.allocate();
    CHECK(cuMemAlloc_v2(&address, BYTES) == OUT_OF_MEMORY);
    gpu.allocate();
}

void kernel_reads_far() {
    GPU gpu;
    uint64_t from = gpu.allocate(), to = gpu.allocate(64 << 10);
    // Its last block alone is outside: of several, any may come first.
    CHECK(gpu.convert(to, from, (4096 / 4) + 1) == 0);
    gpu.wait();
}

void kernel_reads_freed() {
    GPU gpu;
    uint64_t to = gpu.allocate(), from = gpu.allocate();
    CHECK(cuMemFree_v2(from) == 0);
    CHECK(gpu.convert(to, from, COUNT) == 0);
    gpu.wait();
}

// Too near to be caught at once; it is when the memory is freed.
void kernel_writes_a_little_far() {
    GPU gpu;
    uint64_t to = gpu.allocate(), from = gpu.allocate(2 * BYTES);
    CHECK(cuMemsetD8Async(from, 0, 2 * BYTES, gpu.stream) == 0);
    CHECK(gpu.convert(to, from, COUNT + 1) == 0);
    cuMemFree_v2(to);
}

// ---------------------------------------------------------------------------------------------- kernels

void stale_ptx_is_refused() {
    GPU gpu;
    void *module, *function;
    CHECK(cuModuleLoadData(&module, "no PTX") != 0);
    CHECK(cuModuleLoadData(&module, ptx("8.0", "sm_75", "convert_f32", ".u32").c_str()) == INVALID_PTX);
    CHECK(cuModuleLoadData(&module, ptx("8.0", "sm_75", "no_such_kernel", ".u64").c_str()) == INVALID_PTX);
    CHECK(cuModuleLoadData(&module, ptx("8.0", "sm_90", "convert_f32", ".u64").c_str()) == INVALID_PTX);
    CHECK(cuModuleLoadData(&module, ptx("9.0", "sm_75", "convert_f32", ".u64").c_str()) == UNSUPPORTED_PTX_VERSION);
    CHECK(cuModuleLoadData(&module, ptx("8.0", "sm_75", "convert_f32", ".align 8 .b8 x[8]; //").c_str()) == 0);
    CHECK(cuModuleGetFunction(&function, module, "convert_f16") == NOT_FOUND);
}

void launches_have_bounds() {
    GPU gpu;
    uint64_t address = gpu.allocate();
    CHECK(gpu.convert(address, address, COUNT, 512) == TOO_MANY_THREADS);
    CHECK(gpu.convert(address, address, COUNT, 2048) == INVALID_VALUE);
    CHECK(gpu.convert(address, address, 0) == INVALID_VALUE);
    CHECK(gpu.convert(address, address, COUNT, 256, 64 << 10) == INVALID_VALUE);
    CHECK(cuFuncSetAttribute(gpu.function, 8, 64 << 10) == 0);
    CHECK(gpu.convert(address, address, COUNT, 256, 64 << 10) == 0);
    CHECK(cuFuncSetAttribute(gpu.function, 8, 128 << 10) == INVALID_VALUE);
}

// STAND_IN_FAIL_KERNEL=1
void failure_comes_at_the_wait_and_stays() {
    GPU gpu;
    uint64_t address = gpu.allocate();
    CHECK(gpu.convert(address, address, COUNT) == 0);
    CHECK(gpu.wait() == ILLEGAL_ADDRESS);
    CHECK(gpu.wait() == ILLEGAL_ADDRESS);
    CHECK(cuMemFree_v2(address) == ILLEGAL_ADDRESS);
}

// ---------------------------------------------------------------------------------------------- cuBLAS

// Row after row: out[rows, outputs] = x[rows, width] · weights[outputs, width]ᵀ, and once more on top.
void matrices_multiply() {
    constexpr int ROWS = 3, OUTPUTS = 5, WIDTH = 7, F32 = 0, COMPUTE_F32 = 68;
    GPU gpu;
    void *library;
    CHECK(cublasCreate_v2(&library) == 0 && cublasSetStream_v2(library, gpu.stream) == 0);
    std::vector<float> x(ROWS * WIDTH), weights(OUTPUTS * WIDTH), out(ROWS * OUTPUTS);
    for (size_t i = 0; i < x.size(); i++) x[i] = float(i * 5 % 11) - 4;
    for (size_t i = 0; i < weights.size(); i++) weights[i] = float(i * 3 % 13) - 5;
    auto upload = [&](const std::vector<float> &from) {
        uint64_t address = gpu.allocate(from.size() * 4);
        CHECK(cuMemcpyHtoDAsync_v2(address, from.data(), from.size() * 4, gpu.stream) == 0);
        return reinterpret_cast<void *>(address);
    };
    void *x_there = upload(x), *weights_there = upload(weights);
    // It holds no numbers yet, and with a beta of 0 they don't count.
    auto out_there = reinterpret_cast<void *>(gpu.allocate(out.size() * 4));
    for (float beta : {0.0f, 1.0f}) {
        float alpha = 1;
        CHECK(cublasGemmEx(library, 1, 0, OUTPUTS, ROWS, WIDTH, &alpha, weights_there, F32, WIDTH, x_there, F32, WIDTH,
                           &beta, out_there, F32, OUTPUTS, COMPUTE_F32, -1) == 0);
    }
    CHECK(cuMemcpyDtoHAsync_v2(out.data(), reinterpret_cast<uint64_t>(out_there), out.size() * 4, gpu.stream) == 0);
    for (int r = 0; r < ROWS; r++)
        for (int o = 0; o < OUTPUTS; o++) {
            float sum = 0;
            for (int k = 0; k < WIDTH; k++) sum += x[size_t(r * WIDTH + k)] * weights[size_t(o * WIDTH + k)];
            CHECK(out[size_t(r * OUTPUTS + o)] == 2 * sum);
        }
    CHECK(cublasDestroy_v2(library) == 0);
}

// ---------------------------------------------------------------------------------------------- GPUs

// STAND_IN_DEVICES=0 or CUDA_VISIBLE_DEVICES=
void no_gpus() { CHECK(cuInit(0) == NO_DEVICE); }

void contexts_end() {
    GPU gpu;
    uint64_t address = gpu.allocate();
    CHECK(cuDevicePrimaryCtxRelease_v2(0) == 0);
    CHECK(cuMemFree_v2(address) == INVALID_CONTEXT);
    CHECK(cuCtxSetCurrent(gpu.context) == INVALID_CONTEXT);
}

const Test TESTS[] = {
    TEST(kernel_runs),
    TEST(work_waits),
    TEST(streams_wait_for_events),
    TEST(work_runs_at_once),
    TEST(work_runs_in_any_order_that_events_allow),
    TEST(copies_run_beside_kernels),
    TEST(streams_share_what_a_gpu_has_one_of),
    TEST(work_begins_after_what_the_host_has_waited_for),
    TEST(memory_is_counted),
    TEST(fresh_memory_is_poison),
    TEST(copies_stay_inside),
    TEST(ranges_have_memory_where_it_is_mapped),
    TEST(kernel_reads_unmapped),
    TEST(second_allocation_fails),
    TEST(kernel_reads_far),
    TEST(kernel_reads_freed),
    TEST(kernel_writes_a_little_far),
    TEST(stale_ptx_is_refused),
    TEST(launches_have_bounds),
    TEST(failure_comes_at_the_wait_and_stays),
    TEST(matrices_multiply),
    TEST(no_gpus),
    TEST(contexts_end),
};

} // namespace

int main(int count, char **arguments) { return run_test(TESTS, count, arguments); }
