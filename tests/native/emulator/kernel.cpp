// A machine for one program: loads a static Linux ELF file from the disk, runs it in ring 0, and answers the few system calls of its C
// library.
//
// It is there to run a test under an emulator of a processor that no machine at hand has, within seconds of the reset. An emulator without
// AVX512_BF16 raises an invalid opcode for vdpbf16ps: that one instruction is decoded here, and computed in boot.S.
#include <elf.h>
#include <stddef.h>
#include <stdint.h>

namespace {

constexpr uint64_t kStaging = 0x10000000, kStackTop = 0x0ff00000, kMappings = 0x14000000, kMemoryEnd = 0x7ff00000;
constexpr uint32_t kHeaderSector = 64;
constexpr int64_t kNoSuchCall = -38, kNoMemory = -12;

struct Header {  // of the disk's second part: what to run
    uint32_t size;
    uint32_t argc;
    uint32_t permits_tiles;
    char arguments[500];  // each ends with 0
};
Header header;

void out8(uint16_t port, uint8_t value) { asm volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }
uint8_t in8(uint16_t port) {
    uint8_t value;
    asm volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
    return value;
}

void print(char c) {  // to the first serial port
    while (!(in8(0x3fd) & 0x20)) {}
    out8(0x3f8, static_cast<uint8_t>(c));
}
void print(const char* text) {
    while (*text) print(*text++);
}
void print_hex(uint64_t value) {
    for (int shift = 60; shift >= 0; shift -= 4) print("0123456789abcdef"[(value >> shift) & 15]);
}

[[noreturn]] void stop(int status) {
    print("\nexit ");
    if (status >= 100) print(static_cast<char>('0' + status / 100 % 10));
    if (status >= 10) print(static_cast<char>('0' + status / 10 % 10));
    print(static_cast<char>('0' + status % 10));
    print("\n");
    while (!(in8(0x3fd) & 0x40)) {}
    for (const char* c = "Shutdown"; *c; ++c) out8(0x8900, static_cast<uint8_t>(*c));
    for (;;) asm volatile("cli; hlt");
}

[[noreturn]] void fail(const char* what, uint64_t value) {
    print("\nmachine: ");
    print(what);
    print(' ');
    print_hex(value);
    stop(99);
}

void fill(uint64_t to, uint8_t value, uint64_t size) { asm volatile("rep stosb" : "+D"(to), "+c"(size) : "a"(value) : "memory"); }
void copy(uint64_t to, uint64_t from, uint64_t size) { asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size) : : "memory"); }

void read_sectors(uint32_t sector, uint32_t count, uint64_t to) {  // programmed input from the first ATA disk
    for (; count > 0; --count, ++sector) {
        out8(0x1f2, 1);
        out8(0x1f3, static_cast<uint8_t>(sector));
        out8(0x1f4, static_cast<uint8_t>(sector >> 8));
        out8(0x1f5, static_cast<uint8_t>(sector >> 16));
        out8(0x1f6, static_cast<uint8_t>(0xe0 | sector >> 24));
        out8(0x1f7, 0x20);
        uint8_t status;
        do status = in8(0x1f7);
        while (status & 0x80 || !(status & 0x09));
        if (status & 1) fail("cannot read sector", sector);
        uint64_t words = 256;
        asm volatile("rep insw" : "+D"(to), "+c"(words) : "d"(0x1f0) : "memory");
    }
}

uint64_t heap_begin, heap_end, mapped = kMappings;

uint64_t move_heap_end(uint64_t to) {
    if (to < heap_begin || to > kStackTop - (8 << 20)) return heap_end;
    if (to > heap_end) fill(heap_end, 0, to - heap_end);
    return heap_end = to;
}

int64_t map(uint64_t size) {  // never taken back: memory is zero, and there is enough
    size = (size + 4095) & ~uint64_t{4095};
    if (size > kMemoryEnd - mapped) return kNoMemory;
    mapped += size;
    return static_cast<int64_t>(mapped - size);
}

int64_t write(const char* data, uint64_t size) {
    for (uint64_t i = 0; i < size; ++i) print(data[i]);
    return static_cast<int64_t>(size);
}

}  // namespace

// What exception_entry saves, and the operands of the dot product that it computes.
struct Frame {
    uint64_t registers[15];  // r15 .. r8, rdi, rsi, rbp, rbx, rdx, rcx, rax
    uint64_t number, code, rip, cs, flags, rsp, ss;
};

extern "C" {

extern const uint32_t register_states;  // of XCR0
uint64_t program_entry;
float *dot_sum, *dot_left;
const void* dot_right;

int64_t system_call(int64_t number, uint64_t a, uint64_t b, uint64_t c, uint64_t, uint64_t, uint64_t) {
    switch (number) {
        case 1:
            return write(reinterpret_cast<const char*>(b), c);
        case 9:
            return map(b);  // mmap
        case 10:
            return 0;  // mprotect
        case 11:
            return 0;  // munmap
        case 12:
            return static_cast<int64_t>(move_heap_end(a));
        case 20: {  // writev
            int64_t written = 0;
            auto parts = reinterpret_cast<const uint64_t*>(b);
            for (uint64_t i = 0; i < c; ++i) written += write(reinterpret_cast<const char*>(parts[2 * i]), parts[2 * i + 1]);
            return written;
        }
        case 60:
        case 231:
            stop(static_cast<int>(a & 0xff));
        case 158:  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA), and (ARCH_SET_FS)
            if (a == 0x1023 && b == 18 && header.permits_tiles) return 0;
            if (a != 0x1002) return kNoSuchCall;
            asm volatile("wrmsr" : : "c"(0xc0000100), "a"(static_cast<uint32_t>(b)), "d"(static_cast<uint32_t>(b >> 32)));
            return 0;
        case 186:
        case 218:
            return 1;  // gettid, set_tid_address
        default:
            return kNoSuchCall;  // the C library does without all others
    }
}

static uint64_t& general(Frame& frame, int number) {  // by the processor's numbers: rax rcx rdx rbx rsp rbp rsi rdi r8 ..
    if (number == 4) return frame.rsp;
    static const uint8_t place[16] = {14, 13, 12, 11, 0, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
    return frame.registers[place[number]];
}

// vdpbf16ps with 512 bits and no mask; the instruction set reference has the fields of the EVEX prefix.
static bool decode_dot(Frame& frame, float* vectors) {
    auto code = reinterpret_cast<const uint8_t*>(frame.rip);
    if (code[0] != 0x62 || (code[1] & 7) != 2 || (code[2] & 0x87) != 0x06 || code[4] != 0x52) return false;
    if ((code[3] & 0xe7) != 0x40) return false;
    const bool broadcast = code[3] & 0x10;
    const int modrm = code[5];
    const int sum = (modrm >> 3 & 7) | (~code[1] >> 7 & 1) << 3 | (~code[1] >> 4 & 1) << 4;
    const int left = (~code[2] >> 3 & 15) | (~code[3] >> 3 & 1) << 4;
    int rm = modrm & 7, length = 6;
    dot_sum = vectors + 16 * sum;
    dot_left = vectors + 16 * left;
    if (modrm >> 6 == 3) {
        if (broadcast) return false;
        dot_right = vectors + 16 * (rm | (~code[1] >> 5 & 1) << 3 | (~code[1] >> 6 & 1) << 4);
    } else {
        uint64_t address = 0;
        bool has_base = true, relative = false;
        int mode = modrm >> 6;
        if (rm == 4) {
            const int sib = code[length++], index = (sib >> 3 & 7) | (~code[1] >> 6 & 1) << 3;
            if (index != 4) address += general(frame, index) << (sib >> 6);
            rm = sib & 7;
            has_base = !(rm == 5 && mode == 0);
            if (!has_base) mode = 2;
        } else if (rm == 5 && mode == 0) {
            has_base = false, relative = true, mode = 2;
        }
        if (has_base) address += general(frame, rm | (~code[1] >> 5 & 1) << 3);
        if (mode == 1) address += static_cast<uint64_t>(static_cast<int8_t>(code[length++]) * (broadcast ? 4 : 64));
        if (mode == 2) {
            int32_t offset;
            copy(reinterpret_cast<uint64_t>(&offset), frame.rip + static_cast<uint64_t>(length), 4);
            length += 4;
            address += static_cast<uint64_t>(int64_t{offset});
        }
        if (relative) address += frame.rip + static_cast<uint64_t>(length);
        dot_right = reinterpret_cast<const void*>(address);
        if (broadcast) {
            static uint32_t pairs[16];
            for (uint32_t& pair : pairs) pair = *reinterpret_cast<const uint32_t*>(address);
            dot_right = pairs;
        }
    }
    frame.rip += static_cast<uint64_t>(length);
    return true;
}

void exception(Frame& frame, float* vectors) {
    if (frame.number == 6 && register_states & 0x80 && decode_dot(frame, vectors)) return;
    print("\nmachine: exception ");
    print_hex(frame.number);
    print(" code ");
    print_hex(frame.code);
    print(" at ");
    print_hex(frame.rip);
    print(" bytes");
    for (int i = 0; i < 12; ++i) {
        print(' ');
        uint8_t byte = reinterpret_cast<const uint8_t*>(frame.rip)[i];
        print("0123456789abcdef"[byte >> 4]), print("0123456789abcdef"[byte & 15]);
    }
    uint64_t address;
    asm volatile("mov %%cr2, %0" : "=r"(address));
    print(" address ");
    print_hex(address);
    stop(99);
}

// Loads the program and lays out its stack: argc, argv, environment, auxiliary vector. Returns the stack pointer.
uint64_t kernel_main() {
    out8(0x3fb, 0x80);  // the serial port: at its fastest, eight bits a character
    out8(0x3f8, 1);
    out8(0x3f9, 0);
    out8(0x3fb, 3);
    read_sectors(kHeaderSector, 1, reinterpret_cast<uint64_t>(&header));
    read_sectors(kHeaderSector + 1, (header.size + 511) / 512, kStaging);
    auto& elf = *reinterpret_cast<const Elf64_Ehdr*>(kStaging);
    if (header.size < sizeof elf || elf.e_ident[0] != 0x7f || elf.e_type != ET_EXEC) fail("not a static ELF program of type", elf.e_type);
    uint64_t headers = 0;
    for (int i = 0; i < elf.e_phnum; ++i) {
        auto& part = *reinterpret_cast<const Elf64_Phdr*>(kStaging + elf.e_phoff + static_cast<uint64_t>(i) * elf.e_phentsize);
        if (part.p_type != PT_LOAD) continue;
        if (part.p_vaddr < 0x200000 || part.p_vaddr + part.p_memsz > kStackTop - (16 << 20))
            fail("a segment does not fit at", part.p_vaddr);
        copy(part.p_vaddr, kStaging + part.p_offset, part.p_filesz);
        fill(part.p_vaddr + part.p_filesz, 0, part.p_memsz - part.p_filesz);
        if (part.p_offset == 0) headers = part.p_vaddr + elf.e_phoff;
        if (part.p_vaddr + part.p_memsz > heap_begin) heap_begin = part.p_vaddr + part.p_memsz;
    }
    heap_begin = heap_end = (heap_begin + 4095) & ~uint64_t{4095};
    program_entry = elf.e_entry;

    auto stack = reinterpret_cast<uint64_t*>(kStackTop - 4096);
    uint64_t* top = stack;
    *top++ = header.argc;
    const char* argument = header.arguments;
    for (uint32_t i = 0; i < header.argc; ++i) {
        *top++ = reinterpret_cast<uint64_t>(argument);
        while (*argument++) {}
    }
    *top++ = 0;
    *top++ = 0;
    const uint64_t auxiliary[][2] = {{AT_PAGESZ, 4096},       {AT_PHDR, headers}, {AT_PHENT, elf.e_phentsize}, {AT_PHNUM, elf.e_phnum},
                                     {AT_ENTRY, elf.e_entry}, {AT_SECURE, 0},     {AT_RANDOM, kStaging},       {AT_NULL, 0}};
    for (auto& entry : auxiliary) *top++ = entry[0], *top++ = entry[1];
    return reinterpret_cast<uint64_t>(stack);
}

}  // extern "C"
