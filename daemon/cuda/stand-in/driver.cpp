// libcuda.so.1 on the CPU: as much of NVIDIA's driver as Sluice uses, with a GPU's rules and none of its speed.
//
// When work runs that is sent to a stream is in `streams.cpp`. Types and codes are those of cuda.h.

#include "driver.h"

#include "blocks.h"
#include "gpu.h"
#include "memory.h"
#include "ptx.h"
#include "registry.h"
#include "streams.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

namespace {

using namespace stand_in;

enum Code {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    STUB_LIBRARY = 34,
    DEVICE_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    OPERATING_SYSTEM = 304,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    SYSTEM_NOT_READY = 802,
    SYSTEM_DRIVER_MISMATCH = 803,
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
    UNKNOWN = 999,
};

struct Words {
    Code code;
    const char *name, *text;
};
const Words WORDS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {STUB_LIBRARY, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {COMPAT_NOT_SUPPORTED_ON_DEVICE, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE",
     "forward compatibility was attempted on non supported HW"},
    {UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

// ---------------------------------------------------------------------------------------------- objects

struct Event {
    bool timed;
    // None when it was never recorded: then it is over.
    std::shared_ptr<Moment> moment;
};

struct Module {
    Ptx ptx;
};

struct Function {
    std::string name;
    const Kernel *kernel;
    Ptx::Kernel ptx;
    size_t dynamic_shared_max;
};

// What the caller holds as a pointer.
template <class T> class Handles {
  public:
    void *add(std::shared_ptr<T> object) {
        void *handle = object.get();
        objects[handle] = std::move(object);
        return handle;
    }
    std::shared_ptr<T> get(void *handle) const {
        auto found = objects.find(handle);
        return found == objects.end() ? nullptr : found->second;
    }
    bool remove(void *handle) { return objects.erase(handle) == 1; }

    auto begin() const { return objects.begin(); }
    auto end() const { return objects.end(); }

  private:
    std::map<void *, std::shared_ptr<T>> objects;
};

// A GPU's only context.
struct Context {
    int users = 0;
    uint64_t used_bytes = gpu::CONTEXT_BYTES;
    // Of work that failed: what every later call answers.
    Code failure = SUCCESS;
    Streams work;
    Handles<Stream> streams;
    Handles<Event> events;
    Handles<Module> modules;
    Handles<Function> functions;
    std::map<uint64_t, std::unique_ptr<DeviceMemory>> memory;
    // By the handle that the caller holds.
    std::map<uint64_t, std::shared_ptr<Physical>> physical;
    std::map<uint64_t, std::unique_ptr<AddressRange>> ranges;

    bool holds(uint64_t address, size_t bytes) const {
        if (AddressRange *range = range_of(address)) return range->holds(address, bytes);
        auto after = memory.upper_bound(address);
        if (after == memory.begin()) return false;
        auto &[start, block] = *std::prev(after);
        return address - start <= block->bytes && bytes <= block->bytes - (address - start);
    }

    AddressRange *range_of(uint64_t address) const {
        auto after = ranges.upper_bound(address);
        if (after == ranges.begin()) return nullptr;
        auto &[start, range] = *std::prev(after);
        return address - start < range->bytes ? range.get() : nullptr;
    }
};

struct Driver {
    std::mutex mutex;
    bool initialized = false;
    // The GPUs that the process may see, by their numbers in the machine.
    std::vector<int> visible;
    std::map<int, std::unique_ptr<Context>> contexts;
    std::map<void *, size_t> pinned;
    struct sigaction before;
};

// Never destroyed: the program may end while threads of it are at work.
Driver &driver = *new Driver;
thread_local Context *current_context = nullptr;

// ---------------------------------------------------------------------------------------------- faults

// Whether this is the call of its kind, counted from 1, that the environment wants to fail.
bool fails(const char *setting_name, uint64_t &calls) { return ++calls == setting(setting_name, 0); }

// A kernel's bad access ends the program, and so does the host's to device memory that is not there. This says whose.
void tell_fault(int, siginfo_t *info, void *) {
    auto address = reinterpret_cast<uint64_t>(info->si_addr);
    std::string nearest = "no allocation is before it";
    for (auto &[gpu, context] : driver.contexts) {
        if (AddressRange *range = context->range_of(address)) {
            nearest = "nothing is mapped there, " + std::to_string(address - range->address()) +
                      " bytes from the start of a range";
            break;
        }
        auto after = context->memory.upper_bound(address);
        if (after == context->memory.begin()) continue;
        auto &[start, block] = *std::prev(after);
        nearest = std::to_string(address - start) + " bytes from the start of an allocation of " +
                  std::to_string(block->bytes);
    }
    if (current || (address >= FIRST_ADDRESS && address < FIRST_ADDRESS * 2))
        std::fprintf(stderr, "stand-in: %s: a bad access at %p: %s\n", place().c_str(), info->si_addr, nearest.c_str());
    // Back in the same place it happens again, and whoever was there before deals with it.
    sigaction(SIGSEGV, &driver.before, nullptr);
}

// ---------------------------------------------------------------------------------------------- what the GPUs can do

// The shared memory that a block may have without asking for more.
constexpr int SHARED_BYTES = 48 << 10;

// The newest PTX that a driver of this version takes.
unsigned ptx_version_max(int cuda) {
    int major = cuda / 1000, minor = cuda % 1000 / 10;
    if (major == 11) return unsigned(70 + minor);
    if (major == 12) return unsigned(80 + minor - (minor >= 6));
    return unsigned(90 + minor);
}

int shared_bytes_max() {
    auto [major, minor] = gpu::capability();
    switch (major * 10 + minor) {
    case 70: return 96 << 10;
    case 75: return 64 << 10;
    case 80: case 87: return 163 << 10;
    case 86: case 89: case 120: return 99 << 10;
    case 90: case 100: return 227 << 10;
    default: return 48 << 10;
    }
}

bool has_ranges() { return setting("STAND_IN_RANGES", 1) != 0; }

bool attribute(int number, int gpu, int &value) {
    switch (number) {
    case 1: value = 1024; return true;                        // threads of a block
    case 2: case 3: value = 1024; return true;                // block, x and y
    case 4: value = 64; return true;                          // block, z
    case 5: value = 0x7fffffff; return true;                  // grid, x
    case 6: case 7: value = 65535; return true;               // grid, y and z
    case 8: value = SHARED_BYTES; return true;                // shared memory of a block
    case 10: value = WARP; return true;                       // warp
    case 13: value = 1500000; return true;                    // clock, kHz
    case 16: value = 2; return true;                          // multiprocessors
    case 18: value = 0; return true;                          // integrated
    case 19: value = 1; return true;                          // maps host memory
    case 20: value = int(setting("STAND_IN_COMPUTE_MODE", 0)); return true;
    case 33: value = gpu + 1; return true;                   // PCI bus
    case 34: case 50: value = 0; return true;                 // PCI device and domain
    case 36: value = 5000000; return true;                    // memory clock, kHz
    case 37: value = 128; return true;                        // memory bus, bits
    case 38: value = 2 << 20; return true;                    // L2 cache
    case 39: value = 1536; return true;                       // threads of a multiprocessor
    case 40: value = 2; return true;                          // copy engines
    case 41: value = 1; return true;                          // unified addresses
    case 75: value = gpu::capability(gpu).major; return true;
    case 76: value = gpu::capability(gpu).minor; return true;
    case 81: value = shared_bytes_max() + 1024; return true;  // shared memory of a multiprocessor
    case 97: value = shared_bytes_max(); return true;         // shared memory of a block that asks for it
    case 102: value = has_ranges(); return true;              // ranges of addresses
    default: return false;
    }
}

// As the driver reads CUDA_VISIBLE_DEVICES: what follows a wrong one doesn't count.
std::vector<int> visible_cards() {
    std::vector<int> gpus;
    const char *list = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!list) {
        for (int i = 0; i < gpu::count(); i++) gpus.push_back(i);
        return gpus;
    }
    for (char *end; *list; list = *end == ',' ? end + 1 : end) {
        long gpu = std::strtol(list, &end, 10);
        if (end == list || gpu < 0 || gpu >= gpu::count()) break;
        gpus.push_back(int(gpu));
    }
    return gpus;
}

// ---------------------------------------------------------------------------------------------- calls

// Every call: one at a time, and only of a driver that has been initialized.
template <class Call> int call(Call body) {
    std::lock_guard<std::mutex> lock(driver.mutex);
    return driver.initialized ? int(body()) : int(NOT_INITIALIZED);
}

template <class Call> int on_gpu(int ordinal, Call body) {
    return call([&]() -> Code {
        if (ordinal < 0 || size_t(ordinal) >= driver.visible.size()) return INVALID_DEVICE;
        return body(driver.visible[size_t(ordinal)]);
    });
}

bool is_context(void *handle) {
    return std::any_of(driver.contexts.begin(), driver.contexts.end(),
                       [=](auto &entry) { return entry.second.get() == handle; });
}

// Calls that need this thread's context.
template <class Call> int in_context(Call body) {
    return call([&]() -> Code {
        if (!is_context(current_context)) return INVALID_CONTEXT;
        if (current_context->failure != SUCCESS) return current_context->failure;
        Code code = body(*current_context);
        return current_context->failure != SUCCESS ? current_context->failure : code;
    });
}

template <class Call> int on_stream(void *handle, Call body) {
    return in_context([&](Context &context) -> Code {
        // There is no default stream here: Sluice has none of its work there.
        auto stream = context.streams.get(handle);
        return stream ? body(context, stream) : INVALID_HANDLE;
    });
}

template <class Call> int on_event(void *handle, Call body) {
    return in_context([&](Context &context) -> Code {
        auto event = context.events.get(handle);
        return event ? body(context, event) : INVALID_HANDLE;
    });
}

bool is_pinned(const void *start, size_t bytes) {
    auto after = driver.pinned.upper_bound(const_cast<void *>(start));
    if (after == driver.pinned.begin()) return false;
    auto &[first, size] = *std::prev(after);
    auto offset = size_t(static_cast<const char *>(start) - static_cast<const char *>(first));
    return offset <= size && bytes <= size - offset;
}

void *at(uint64_t address) { return reinterpret_cast<void *>(address); }

// How often memory of a GPU was asked for, and which time is refused on a test's behalf.
uint64_t allocations = 0, refused_allocation = 0;

bool finds_room(const Context &context, size_t bytes) {
    uint64_t taken = context.used_bytes + gpu::held_bytes(), total = gpu::total_bytes();
    bool is_refused = fails("STAND_IN_FAIL_ALLOCATION", allocations) || allocations == refused_allocation;
    return !is_refused && taken <= total && bytes <= total - taken;
}

Code allocate(Context &context, uint64_t *address, size_t bytes) {
    if (!address || bytes == 0) return INVALID_VALUE;
    if (!finds_room(context, bytes)) return OUT_OF_MEMORY;
    auto memory = std::make_unique<DeviceMemory>(bytes);
    *address = memory->address();
    context.used_bytes += bytes;
    context.memory[*address] = std::move(memory);
    return SUCCESS;
}

// The least that memory without an address comes in, and where it may be mapped.
size_t granularity() { return setting("STAND_IN_GRANULARITY", 2 << 20); }

// What the caller asks for memory without an address, and who may touch it: as in cuda.h.
struct Location {
    int type, id;
};
struct AllocationProperties {
    int type, handle_types;
    Location location;
    void *windows;
    unsigned char flags[8];
};
struct Access {
    Location location;
    int flags;
};
constexpr int ON_DEVICE = 1, PINNED = 1, READ_WRITE = 3;

// Calls that deal with ranges of addresses.
template <class Call> int with_ranges(Call body) {
    return in_context([&](Context &context) -> Code { return has_ranges() ? body(context) : NOT_SUPPORTED; });
}

// The same of one range, some bytes of which are meant, in whole pieces.
template <class Call> int in_range(uint64_t address, size_t bytes, Call body) {
    return with_ranges([&](Context &context) -> Code {
        AddressRange *range = context.range_of(address);
        if (!range || bytes == 0 || address % granularity() != 0 || bytes % granularity() != 0) return INVALID_VALUE;
        return body(context, *range) ? SUCCESS : INVALID_VALUE;
    });
}

Code load_module(Context &context, void **module, const char *image, std::string &log) {
    auto [major, minor] = gpu::capability();
    Ptx ptx = Ptx::read(image);
    if (ptx.version == 0) return log = "the image is no PTX", INVALID_IMAGE;
    if (ptx.version > ptx_version_max(gpu::driver_version()))
        return log = "the driver knows no PTX " + std::to_string(ptx.version), UNSUPPORTED_PTX_VERSION;
    if (ptx.target > unsigned(major * 10 + minor))
        return log = "the PTX is for sm_" + std::to_string(ptx.target) + " and newer", INVALID_PTX;
    for (auto &[name, compiled] : ptx.kernels) {
        const Kernel *kernel = find_kernel(name);
        if (kernel && kernel->parameter_bytes == compiled.parameter_bytes) continue;
        log = name + (kernel ? " has other parameters in the PTX than in its source"
                             : " of the PTX is not in kernels/list.h");
        std::fprintf(stderr, "stand-in: %s: make the PTX anew\n", log.c_str());
        return INVALID_PTX;
    }
    *module = context.modules.add(std::make_shared<Module>(Module{std::move(ptx)}));
    return SUCCESS;
}

Code launch(Context &context, const std::shared_ptr<Stream> &stream, const Function &function, uint3 grid, uint3 block, size_t shared,
            void **parameters) {
    static uint64_t calls = 0;
    uint64_t threads = uint64_t(block.x) * block.y * block.z;
    if (threads == 0 || threads > 1024 || block.z > 64) return INVALID_VALUE;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return INVALID_VALUE;
    if (grid.x > 0x7fffffffu || grid.y > 65535 || grid.z > 65535) return INVALID_VALUE;
    if (shared > function.dynamic_shared_max) return INVALID_VALUE;
    if (function.ptx.threads_max && threads > function.ptx.threads_max) return LAUNCH_OUT_OF_RESOURCES;
    if (!parameters && !function.kernel->parameter_bytes.empty()) return INVALID_VALUE;

    const char *named = std::getenv("STAND_IN_FAIL_KERNEL");
    bool fail = (named && function.name == named) || fails("STAND_IN_FAIL_KERNEL", calls);
    Cost cost = Cost::kernel(uint64_t(grid.x) * grid.y * grid.z);
    context.work.send(*stream, cost, [&context, fail, name = function.name, grid, block, shared, body = function.kernel->bind(parameters)] {
        if (fail) context.failure = ILLEGAL_ADDRESS;
        if (context.failure == SUCCESS) run({name.c_str(), grid, block, shared, body});
    });
    return SUCCESS;
}

} // namespace

// ---------------------------------------------------------------------------------------------- for the other libraries

bool stand_in::send(void *stream, uint64_t blocks, std::function<void()> work) {
    return on_stream(stream, [&](Context &context, auto &found) {
        context.work.send(*found, Cost::kernel(blocks), [&context, work] {
            if (context.failure == SUCCESS) work();
        });
        return SUCCESS;
    }) == SUCCESS;
}

bool stand_in::holds(uint64_t address, size_t bytes) {
    return in_context([&](Context &context) { return context.holds(address, bytes) ? SUCCESS : INVALID_VALUE; }) ==
           SUCCESS;
}

uint64_t stand_in::used_bytes(int ordinal) {
    std::lock_guard<std::mutex> lock(driver.mutex);
    auto found = driver.contexts.find(ordinal);
    return found == driver.contexts.end() ? 0 : found->second->used_bytes;
}

// ---------------------------------------------------------------------------------------------- what libcuda.so.1 has

#define EXPORT extern "C" __attribute__((visibility("default"))) int

// For tests, not the driver's: see `allocations`.
extern "C" __attribute__((visibility("default"))) uint64_t standInAllocations() {
    std::lock_guard<std::mutex> lock(driver.mutex);
    return allocations;
}

// The allocation after so many more finds no room; none for 0.
extern "C" __attribute__((visibility("default"))) void standInRefuseAllocation(uint64_t after) {
    std::lock_guard<std::mutex> lock(driver.mutex);
    refused_allocation = after ? allocations + after : 0;
}

EXPORT cuInit(unsigned flags) {
    std::lock_guard<std::mutex> lock(driver.mutex);
    if (flags != 0) return INVALID_VALUE;
    if (int code = int(setting("STAND_IN_INIT_FAILS", 0))) return code;
    if (driver.initialized) return SUCCESS;
    driver.visible = visible_cards();
    if (driver.visible.empty()) return NO_DEVICE;
    struct sigaction action = {};
    action.sa_sigaction = tell_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &driver.before);
    driver.initialized = true;
    return SUCCESS;
}

EXPORT cuDriverGetVersion(int *version) {
    if (int code = int(setting("STAND_IN_VERSION_FAILS", 0))) return code;
    *version = gpu::driver_version();
    return SUCCESS;
}

EXPORT cuGetErrorName(int code, const char **name) {
    for (const Words &words : WORDS)
        if (words.code == code) return *name = words.name, SUCCESS;
    return *name = nullptr, INVALID_VALUE;
}

EXPORT cuGetErrorString(int code, const char **text) {
    for (const Words &words : WORDS)
        if (words.code == code) return *text = words.text, SUCCESS;
    return *text = nullptr, INVALID_VALUE;
}

// ------------------------------------------------------------------ GPUs

EXPORT cuDeviceGetCount(int *count) {
    return call([&] { return *count = int(driver.visible.size()), SUCCESS; });
}

EXPORT cuDeviceGet(int *device, int ordinal) {
    return on_gpu(ordinal, [&](int) { return *device = ordinal, SUCCESS; });
}

EXPORT cuDeviceGetName(char *name, int bytes, int device) {
    return on_gpu(device, [&](int) { return std::snprintf(name, size_t(bytes), "%s", gpu::NAME), SUCCESS; });
}

EXPORT cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    return on_gpu(device, [&](int number) { return gpu::uuid(number, uuid), SUCCESS; });
}

EXPORT cuDeviceGetUuid(unsigned char *uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }

EXPORT cuDeviceGetPCIBusId(char *id, int bytes, int device) {
    return on_gpu(device, [&](int number) {
        return std::snprintf(id, size_t(bytes), "%s", gpu::pci_bus_id(number).c_str()), SUCCESS;
    });
}

EXPORT cuDeviceTotalMem_v2(size_t *bytes, int device) {
    return on_gpu(device, [&](int) { return *bytes = gpu::total_bytes(), SUCCESS; });
}

EXPORT cuDeviceGetAttribute(int *value, int number, int device) {
    return on_gpu(device, [&](int gpu) { return attribute(number, gpu, *value) ? SUCCESS : INVALID_VALUE; });
}

// ------------------------------------------------------------------ contexts

EXPORT cuDevicePrimaryCtxSetFlags_v2(int device, unsigned) {
    return on_gpu(device, [&](int) { return SUCCESS; });
}

EXPORT cuDevicePrimaryCtxRetain(void **handle, int device) {
    return on_gpu(device, [&](int gpu) {
        if (Code code = Code(setting("STAND_IN_CONTEXT_FAILS", 0))) return code;
        auto &context = driver.contexts[gpu];
        if (!context) {
            if (gpu::held_bytes() + gpu::CONTEXT_BYTES > gpu::total_bytes()) {
                driver.contexts.erase(gpu);
                return OUT_OF_MEMORY;
            }
            context = std::make_unique<Context>();
        }
        context->users++;
        *handle = context.get();
        return SUCCESS;
    });
}

EXPORT cuDevicePrimaryCtxRelease_v2(int device) {
    return on_gpu(device, [&](int gpu) {
        auto context = driver.contexts.find(gpu);
        if (context == driver.contexts.end()) return INVALID_CONTEXT;
        if (--context->second->users > 0) return SUCCESS;
        context->second->work.finish_all();
        driver.contexts.erase(context);
        return SUCCESS;
    });
}

EXPORT cuCtxSetCurrent(void *handle) {
    return call([&] {
        if (handle && !is_context(handle)) return INVALID_CONTEXT;
        current_context = static_cast<Context *>(handle);
        return SUCCESS;
    });
}

EXPORT cuCtxGetCurrent(void **handle) {
    return call([&] { return *handle = current_context, SUCCESS; });
}

EXPORT cuCtxSynchronize() {
    return in_context([](Context &context) { return context.work.finish_all(), SUCCESS; });
}

// ------------------------------------------------------------------ memory

EXPORT cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    return in_context([&](Context &context) {
        uint64_t taken = context.used_bytes + gpu::held_bytes();
        *total_bytes = gpu::total_bytes();
        *free_bytes = *total_bytes - std::min<uint64_t>(taken, *total_bytes);
        return SUCCESS;
    });
}

EXPORT cuMemAlloc_v2(uint64_t *address, size_t bytes) {
    return in_context([&](Context &context) { return allocate(context, address, bytes); });
}

EXPORT cuMemFree_v2(uint64_t address) {
    return in_context([&](Context &context) {
        if (address == 0) return SUCCESS;
        auto found = context.memory.find(address);
        if (found == context.memory.end()) return INVALID_VALUE;
        context.work.finish_all();
        context.used_bytes -= found->second->bytes;
        context.memory.erase(found);
        return SUCCESS;
    });
}

// ------------------------------------------------------------------ ranges of addresses

EXPORT cuMemGetAllocationGranularity(size_t *bytes, const AllocationProperties *properties, int) {
    return with_ranges([&](Context &) {
        if (properties->type != PINNED || properties->location.type != ON_DEVICE) return INVALID_VALUE;
        return *bytes = granularity(), SUCCESS;
    });
}

EXPORT cuMemAddressReserve(uint64_t *address, size_t bytes, size_t, uint64_t, unsigned long long flags) {
    return with_ranges([&](Context &context) {
        if (bytes == 0 || bytes % granularity() != 0 || flags != 0) return INVALID_VALUE;
        auto range = std::make_unique<AddressRange>(bytes);
        *address = range->address();
        context.ranges[*address] = std::move(range);
        return SUCCESS;
    });
}

EXPORT cuMemAddressFree(uint64_t address, size_t bytes) {
    return with_ranges([&](Context &context) {
        auto found = context.ranges.find(address);
        if (found == context.ranges.end() || found->second->bytes != bytes || !found->second->is_empty())
            return INVALID_VALUE;
        context.ranges.erase(found);
        return SUCCESS;
    });
}

EXPORT cuMemCreate(uint64_t *handle, size_t bytes, const AllocationProperties *properties, unsigned long long flags) {
    return with_ranges([&](Context &context) {
        static uint64_t next = 0x51;
        if (properties->type != PINNED || properties->handle_types != 0 || properties->location.type != ON_DEVICE)
            return INVALID_VALUE;
        if (bytes == 0 || bytes % granularity() != 0 || flags != 0) return INVALID_VALUE;
        if (!finds_room(context, bytes)) return OUT_OF_MEMORY;
        *handle = next++;
        context.physical[*handle] = std::make_shared<Physical>(bytes, context.used_bytes);
        return SUCCESS;
    });
}

// What is mapped stays until it is unmapped.
EXPORT cuMemRelease(uint64_t handle) {
    return with_ranges([&](Context &context) { return context.physical.erase(handle) ? SUCCESS : INVALID_VALUE; });
}

// Once only, and all of it, which is less than the driver allows.
EXPORT cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags) {
    return in_range(address, bytes, [&](Context &context, AddressRange &range) {
        auto found = context.physical.find(handle);
        if (found == context.physical.end() || found->second->is_mapped) return false;
        return offset == 0 && flags == 0 && bytes == found->second->bytes && range.map(address, found->second);
    });
}

EXPORT cuMemSetAccess(uint64_t address, size_t bytes, const Access *access, size_t count) {
    return in_range(address, bytes, [&](Context &, AddressRange &range) {
        return count == 1 && access->location.type == ON_DEVICE && access->flags == READ_WRITE &&
               range.make_accessible(address, bytes);
    });
}

// It waits for no work: whoever still uses the memory finds nothing there.
EXPORT cuMemUnmap(uint64_t address, size_t bytes) {
    return in_range(address, bytes, [&](Context &, AddressRange &range) { return range.unmap(address, bytes); });
}

// ------------------------------------------------------------------ pinned memory, and copies

// Where in its page pinned memory begins: the driver promises no page of its own.
constexpr size_t PINNED_START = 512;

EXPORT cuMemHostAlloc(void **start, size_t bytes, unsigned) {
    return in_context([&](Context &) {
        static uint64_t calls = 0;
        if (bytes == 0) return INVALID_VALUE;
        if (fails("STAND_IN_FAIL_PINNED", calls)) return OUT_OF_MEMORY;
        void *mapped = mmap(nullptr, bytes + PINNED_START, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) return OUT_OF_MEMORY;
        *start = static_cast<char *>(mapped) + PINNED_START;
        driver.pinned[*start] = bytes;
        return SUCCESS;
    });
}

EXPORT cuMemFreeHost(void *start) {
    return in_context([&](Context &context) {
        auto found = driver.pinned.find(start);
        if (found == driver.pinned.end()) return INVALID_VALUE;
        context.work.finish_all();
        munmap(static_cast<char *>(start) - PINNED_START, found->second + PINNED_START);
        driver.pinned.erase(found);
        return SUCCESS;
    });
}

// From pinned memory the bytes are read when the copy runs, and what has been written there until then goes along.
// Others are read now, as the driver promises.
EXPORT cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    return on_stream(stream, [&](Context &context, auto &found) {
        if (!context.holds(to, bytes)) return INVALID_VALUE;
        Cost cost = Cost::copy(Engine::TO_DEVICE, bytes);
        if (is_pinned(from, bytes)) {
            context.work.send(*found, cost, [=] { std::memcpy(at(to), from, bytes); });
        } else {
            auto start = static_cast<const char *>(from);
            context.work.send(*found, cost, [to, kept = std::vector<char>(start, start + bytes)] {
                std::memcpy(at(to), kept.data(), kept.size());
            });
        }
        return SUCCESS;
    });
}

EXPORT cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    return on_stream(stream, [&](Context &context, auto &found) {
        if (!context.holds(from, bytes)) return INVALID_VALUE;
        context.work.send(*found, Cost::copy(Engine::TO_HOST, bytes), [=] { std::memcpy(to, at(from), bytes); });
        if (!is_pinned(to, bytes)) context.work.finish(*found);
        return SUCCESS;
    });
}

EXPORT cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    return on_stream(stream, [&](Context &context, auto &found) {
        if (!context.holds(from, bytes) || !context.holds(to, bytes)) return INVALID_VALUE;
        // Where they overlap it is not said which bytes come out.
        if (from < to + bytes && to < from + bytes) stop("a copy between %zu bytes that overlap", bytes);
        context.work.send(*found, Cost::memory(bytes), [=] { std::memcpy(at(to), at(from), bytes); });
        return SUCCESS;
    });
}

EXPORT cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void *stream) {
    return on_stream(stream, [&](Context &context, auto &found) {
        if (!context.holds(to, bytes)) return INVALID_VALUE;
        context.work.send(*found, Cost::memory(bytes), [=] { std::memset(at(to), value, bytes); });
        return SUCCESS;
    });
}

// ------------------------------------------------------------------ streams and events

EXPORT cuStreamCreate(void **handle, unsigned) {
    return in_context([&](Context &context) {
        return *handle = context.streams.add(context.work.create()), SUCCESS;
    });
}

EXPORT cuStreamCreateWithPriority(void **handle, unsigned flags, int) { return cuStreamCreate(handle, flags); }

EXPORT cuStreamSynchronize(void *stream) {
    return on_stream(stream, [](Context &context, auto &found) { return context.work.finish(*found), SUCCESS; });
}

EXPORT cuStreamDestroy_v2(void *stream) {
    return on_stream(stream, [&](Context &context, auto &found) {
        context.work.destroy(found);
        context.streams.remove(stream);
        return SUCCESS;
    });
}

EXPORT cuStreamWaitEvent(void *stream, void *handle, unsigned) {
    return on_stream(stream, [&](Context &context, auto &found) {
        auto event = context.events.get(handle);
        if (!event) return INVALID_HANDLE;
        // What it stands for now; it may be recorded again later.
        if (event->moment) context.work.wait_for(*found, event->moment);
        return SUCCESS;
    });
}

EXPORT cuEventCreate(void **handle, unsigned flags) {
    constexpr unsigned DISABLE_TIMING = 2;
    return in_context([&](Context &context) {
        auto event = std::make_shared<Event>();
        event->timed = !(flags & DISABLE_TIMING);
        return *handle = context.events.add(event), SUCCESS;
    });
}

EXPORT cuEventRecord(void *handle, void *stream) {
    return on_stream(stream, [&](Context &context, auto &found) {
        auto event = context.events.get(handle);
        if (!event) return INVALID_HANDLE;
        event->moment = context.work.record(found);
        return SUCCESS;
    });
}

EXPORT cuEventSynchronize(void *handle) {
    return on_event(handle, [](Context &context, auto &event) {
        if (event->moment) context.work.finish(*event->moment);
        return SUCCESS;
    });
}

EXPORT cuEventQuery(void *handle) {
    return on_event(handle, [](Context &context, auto &event) {
        return !event->moment || context.work.is_over(*event->moment) ? SUCCESS : NOT_READY;
    });
}

EXPORT cuEventElapsedTime(float *milliseconds, void *from, void *to) {
    return on_event(from, [&](Context &context, auto &first) {
        auto last = context.events.get(to);
        if (!last || !first->timed || !last->timed || !first->moment || !last->moment) return INVALID_HANDLE;
        if (!first->moment->is_over || !last->moment->is_over) return NOT_READY;
        *milliseconds = context.work.milliseconds(*first->moment, *last->moment);
        return SUCCESS;
    });
}

EXPORT cuEventDestroy_v2(void *handle) {
    return on_event(handle, [&](Context &context, auto &) { return context.events.remove(handle), SUCCESS; });
}

// ------------------------------------------------------------------ modules and kernels

EXPORT cuModuleLoadDataEx(void **module, const void *image, unsigned count, int *options, void **values) {
    constexpr int LOG = 5, LOG_BYTES = 6;
    return in_context([&](Context &context) {
        std::string log;
        Code code = load_module(context, module, static_cast<const char *>(image), log);
        char *buffer = nullptr;
        size_t bytes = 0;
        for (unsigned i = 0; i < count; i++) {
            if (options[i] == LOG) buffer = static_cast<char *>(values[i]);
            if (options[i] == LOG_BYTES) bytes = unsigned(reinterpret_cast<uintptr_t>(values[i]));
        }
        if (buffer && bytes) std::snprintf(buffer, bytes, "%s", log.c_str());
        return code;
    });
}

EXPORT cuModuleLoadData(void **module, const void *image) {
    return cuModuleLoadDataEx(module, image, 0, nullptr, nullptr);
}

EXPORT cuModuleUnload(void *module) {
    return in_context([&](Context &context) {
        context.work.finish_all();
        return context.modules.remove(module) ? SUCCESS : INVALID_HANDLE;
    });
}

EXPORT cuModuleGetFunction(void **handle, void *module, const char *name) {
    return in_context([&](Context &context) {
        auto found = context.modules.get(module);
        if (!found) return INVALID_HANDLE;
        auto compiled = found->ptx.kernels.find(name);
        if (compiled == found->ptx.kernels.end()) return NOT_FOUND;
        size_t statics = compiled->second.static_shared_bytes;
        if (statics > SHARED_BYTES) return INVALID_PTX;
        Function function{name, find_kernel(name), compiled->second, SHARED_BYTES - statics};
        return *handle = context.functions.add(std::make_shared<Function>(std::move(function))), SUCCESS;
    });
}

EXPORT cuFuncGetAttribute(int *value, int number, void *handle) {
    return in_context([&](Context &context) {
        auto function = context.functions.get(handle);
        if (!function) return INVALID_HANDLE;
        switch (number) {
        case 0: *value = int(function->ptx.threads_max ? function->ptx.threads_max : 1024); return SUCCESS;
        case 1: *value = int(function->ptx.static_shared_bytes); return SUCCESS;
        case 8: *value = int(function->dynamic_shared_max); return SUCCESS;
        default: return INVALID_VALUE;
        }
    });
}

EXPORT cuFuncSetAttribute(void *handle, int number, int value) {
    constexpr int DYNAMIC_SHARED_MAX = 8, SHARED_CARVEOUT = 9;
    return in_context([&](Context &context) {
        auto function = context.functions.get(handle);
        if (!function) return INVALID_HANDLE;
        if (number == SHARED_CARVEOUT) return SUCCESS;
        int most = shared_bytes_max() - int(function->ptx.static_shared_bytes);
        if (number != DYNAMIC_SHARED_MAX || value < 0 || value > most) return INVALID_VALUE;
        function->dynamic_shared_max = size_t(value);
        return SUCCESS;
    });
}

EXPORT cuLaunchKernel(void *handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters,
                      void **extra) {
    return on_stream(stream, [&](Context &context, auto &found) {
        auto function = context.functions.get(handle);
        if (!function) return INVALID_HANDLE;
        if (extra) return INVALID_VALUE;
        return launch(context, found, *function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared,
                      parameters);
    });
}
