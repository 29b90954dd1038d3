#include "memory.h"

#include "blocks.h"
#include "cuda_on_cpu.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace stand_in {

namespace {

// What the driver promises of an address.
constexpr size_t ALIGNMENT = 256;

size_t page_bytes() { return size_t(sysconf(_SC_PAGESIZE)); }

// Addresses that begin at a multiple of `alignment` and can't be touched yet.
void *set_aside(size_t bytes, size_t alignment) {
    static uintptr_t next = FIRST_ADDRESS;
    next = (next + alignment - 1) / alignment * alignment;
    void *mapped = mmap(reinterpret_cast<void *>(next), bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (mapped == MAP_FAILED) stop("can't map %zu bytes", bytes);
    next += bytes;
    return mapped;
}

void make_poison(void *start, size_t bytes) {
    if (mprotect(start, bytes, PROT_READ | PROT_WRITE) != 0) stop("no memory for %zu bytes", bytes);
    std::memset(start, POISON, bytes);
}

} // namespace

// ---------------------------------------------------------------------------------------------- one allocation

DeviceMemory::DeviceMemory(size_t size) : bytes(size) {
    size_t page = page_bytes();
    size_t aligned = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    mapped_bytes = (aligned + page - 1) / page * page + 2 * page;
    mapped = set_aside(mapped_bytes, page);
    first = static_cast<unsigned char *>(mapped) + page;
    last = first + mapped_bytes - 2 * page;
    start = last - aligned;
    make_poison(first, size_t(last - first));
}

DeviceMemory::~DeviceMemory() {
    auto written = [](unsigned char byte) { return byte != POISON; };
    if (std::any_of(first, start, written) || std::any_of(start + bytes, last, written))
        stop("something has written beside the %zu bytes at %p", bytes, static_cast<void *>(start));
    munmap(mapped, mapped_bytes);
}

// ---------------------------------------------------------------------------------------------- a range of addresses

AddressRange::AddressRange(size_t size)
    : bytes(size), start(static_cast<unsigned char *>(set_aside(size, size_t(2) << 20))) {}

AddressRange::~AddressRange() { munmap(start, bytes); }

bool AddressRange::map(uint64_t at, std::shared_ptr<Physical> memory) {
    if (at < address() || at - address() > bytes || memory->bytes > bytes - (at - address())) return false;
    auto after = mappings.lower_bound(at);
    if (after != mappings.end() && after->first < at + memory->bytes) return false;
    if (after != mappings.begin() && std::prev(after)->first + std::prev(after)->second.memory->bytes > at) return false;
    memory->is_mapped = true;
    mappings[at].memory = std::move(memory);
    return true;
}

template <class Each> bool AddressRange::cover(uint64_t at, size_t bytes, Each each) {
    std::vector<Mappings::iterator> found;
    uint64_t next = at, end = at + bytes;
    while (next < end) {
        auto mapping = mappings.find(next);
        if (mapping == mappings.end()) return false;
        found.push_back(mapping);
        next += mapping->second.memory->bytes;
    }
    if (next != end) return false;
    for (auto mapping : found) each(mapping);
    return true;
}

bool AddressRange::unmap(uint64_t at, size_t size) {
    return cover(at, size, [&](Mappings::iterator mapping) {
        auto *pages = reinterpret_cast<void *>(mapping->first);
        size_t mapped = mapping->second.memory->bytes;
        mprotect(pages, mapped, PROT_NONE);
        madvise(pages, mapped, MADV_DONTNEED);
        mapping->second.memory->is_mapped = false;
        mappings.erase(mapping);
    });
}

bool AddressRange::make_accessible(uint64_t at, size_t size) {
    return cover(at, size, [](Mappings::iterator mapping) {
        if (mapping->second.is_accessible) return;
        mapping->second.is_accessible = true;
        make_poison(reinterpret_cast<void *>(mapping->first), mapping->second.memory->bytes);
    });
}

bool AddressRange::holds(uint64_t at, size_t size) const {
    if (at < address() || at - address() >= bytes) return false;
    uint64_t next = at, end = at + size;
    do {
        auto after = mappings.upper_bound(next);
        if (after == mappings.begin()) return false;
        auto &[begins, mapping] = *std::prev(after);
        if (!mapping.is_accessible || next - begins >= mapping.memory->bytes) return false;
        next = begins + mapping.memory->bytes;
    } while (next < end);
    return true;
}

} // namespace stand_in
