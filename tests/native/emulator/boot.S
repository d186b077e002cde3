// From the BIOS to long mode with every register of AVX, AVX-512 and AMX enabled that there is; the entries of system calls and of exceptions.
//
// Memory: 0x1000 page tables, below 0x7c00 the kernel's stacks, 0x7c00 this image, 0x20000 saved vector registers. Page 0 is not mapped; the
// rest of 2 GiB is, each address to itself. Everything runs in ring 0 with interrupts off.

#define STACK 0x7c00
#define FAULT_STACK 0x6800
#define SECTORS 63

.section .boot, "ax"
.globl start
.code16
start:
    cli
    xor %ax, %ax
    mov %ax, %ds
    mov %ax, %es
    mov %ax, %ss
    mov $STACK, %sp
    mov $packet, %si
    mov $0x42, %ah          // read SECTORS sectors behind this one; %dl is still the drive
    int $0x13
    cli                     // a BIOS may come back with interrupts on
    mov $0x92, %dx          // gate A20
    in %dx, %al
    or $2, %al
    and $0xfe, %al
    out %al, %dx
    lgdt gdt_pointer
    mov %cr0, %eax
    or $1, %eax
    mov %eax, %cr0
    ljmp $0x08, $protected

packet: .byte 16, 0
    .word SECTORS, 0x7e00, 0
    .quad 1

.code32
protected:
    mov $0x10, %ax
    mov %ax, %ds
    mov %ax, %es
    mov %ax, %ss
    mov $0x1000, %edi       // level 4, 3, twice 2, and 1 at 0x1000, 0x2000, 0x3000, 0x5000
    mov $0x1400, %ecx
    xor %eax, %eax
    rep stosl
    movl $0x2003, 0x1000
    movl $0x3003, 0x2000
    movl $0x4003, 0x2008
    movl $0x5003, 0x3000
    mov $0x1003, %eax       // the first 2 MiB in pages of 4 KiB, without the first
    mov $0x5008, %edi
small:
    mov %eax, (%edi)
    add $0x1000, %eax
    add $8, %edi
    cmp $0x6000, %edi
    jne small
    mov $0x200083, %eax     // the rest in pages of 2 MiB
    mov $0x3008, %edi
large:
    mov %eax, (%edi)
    add $0x200000, %eax
    add $8, %edi
    cmp $0x5000, %edi
    jne large
    mov $0x40620, %eax      // PAE, OSFXSR, OSXMMEXCPT, OSXSAVE
    mov %eax, %cr4
    mov $0x1000, %eax
    mov %eax, %cr3
    mov $0xc0000080, %ecx   // EFER: long mode, syscall
    rdmsr
    or $0x101, %eax
    wrmsr
    mov %cr0, %eax
    and $0xfffffffb, %eax   // no emulation of the FPU; monitor it; paging
    or $0x80000002, %eax
    mov %eax, %cr0
    ljmp $0x18, $long_mode

.balign 8
gdt:
    .quad 0
    .quad 0x00cf9a000000ffff  // 0x08: code, 32 bits
    .quad 0x00cf92000000ffff  // 0x10: data
    .quad 0x00af9a000000ffff  // 0x18: code, 64 bits
    .quad 0x00cf92000000ffff  // 0x20: data, as syscall wants it behind the code
tss_entry:
    .quad 0, 0                // 0x28: filled in below
gdt_pointer: .word . - gdt - 1
    .quad gdt

.org 510
    .byte 0x55, 0xaa

.text
.code64
long_mode:
    mov $0x20, %ax
    mov %ax, %ds
    mov %ax, %es
    mov %ax, %ss
    mov $STACK, %esp
    fninit
    mov $0xd, %eax          // XCR0: of what the processor has, x87, SSE, AVX, the three states of AVX-512, the two of AMX
    xor %ecx, %ecx
    cpuid
    and $0x600e7, %eax
    mov %eax, register_states
    xor %ecx, %ecx
    xor %edx, %edx
    xsetbv
    lea tss, %rax           // exceptions change to a stack of their own: the code below may keep values under its stack pointer
    mov $103, %ecx
    mov %cx, tss_entry
    mov %ax, tss_entry + 2
    shr $16, %rax
    mov %al, tss_entry + 4
    movb $0x89, tss_entry + 5
    movb %ah, tss_entry + 7
    mov $0x28, %ax
    ltr %ax
    mov $idt, %edi
    mov $vectors, %esi
    mov $32, %ecx
gate:
    lodsq
    mov %ax, (%rdi)
    movw $0x18, 2(%rdi)
    movw $0x8e01, 4(%rdi)   // interrupt gate, stack 1
    shr $16, %rax
    mov %ax, 6(%rdi)
    add $16, %edi
    loop gate
    lidt idt_pointer
    mov $0xc0000081, %ecx   // STAR, LSTAR, FMASK
    xor %eax, %eax
    mov $0x18, %edx
    wrmsr
    inc %ecx
    mov $system_call_entry, %eax
    xor %edx, %edx
    wrmsr
    add $2, %ecx
    xor %eax, %eax
    wrmsr
    call kernel_main        // the program's stack pointer; its entry in program_entry
    mov %rax, %rsp
    xor %edx, %edx
    jmp *program_entry

// Linux's convention: number in rax, arguments in rdi rsi rdx r10 r8 r9; rcx and r11 are lost.
system_call_entry:
    mov %rsp, program_stack
    mov $STACK, %esp
    push %rcx
    push %rdi
    push %rsi
    push %rdx
    push %r8
    push %r9
    push %r10
    mov %r10, %rcx
    push %r9                // the seventh argument of system_call()
    mov %r8, %r9
    mov %rcx, %r8
    mov %rdx, %rcx
    mov %rsi, %rdx
    mov %rdi, %rsi
    mov %rax, %rdi
    call system_call
    add $8, %rsp
    pop %r10
    pop %r9
    pop %r8
    pop %rdx
    pop %rsi
    pop %rdi
    pop %rcx
    mov program_stack, %rsp
    jmp *%rcx

.macro exception number, has_code
exception_\number:
    .if !\has_code
    push $0
    .endif
    push $\number
    jmp exception_entry
.endm
.altmacro
.macro exceptions from, to
    .set i, \from
    .rept \to - \from + 1
    .if i == 8 || (i >= 10 && i <= 14) || i == 17 || i == 21 || i == 29 || i == 30
    exception %i, 1
    .else
    exception %i, 0
    .endif
    .set i, i + 1
    .endr
.endm
exceptions 0, 31

#define ZMM 0x20000
.macro save_vector n
    vmovups %zmm\n, ZMM + 64 * \n
.endm
.macro restore_vector n
    vmovups ZMM + 64 * \n, %zmm\n
.endm
.macro each operation
    .set i, 0
    .rept 32
    \operation %i
    .set i, i + 1
    .endr
.endm

// A frame: r15 .. rax, number, code, rip, cs, rflags, rsp, ss. exception() fixes it up, or ends the machine.
exception_entry:
    push %rax
    push %rcx
    push %rdx
    push %rbx
    push %rbp
    push %rsi
    push %rdi
    push %r8
    push %r9
    push %r10
    push %r11
    push %r12
    push %r13
    push %r14
    push %r15
    testb $0x80, register_states
    jz without_vectors      // exception() will not come back
    each save_vector
without_vectors:
    mov %rsp, %rdi
    mov $ZMM, %esi
    call exception
    // A dot product of pairs of bf16: each product is exact and added with one rounding, the odd ones first; subnormals count as zero.
    stmxcsr mxcsr
    ldmxcsr flush
    mov dot_sum, %rax
    mov dot_left, %rbx
    mov dot_right, %rcx
    vmovups (%rax), %zmm0
    vmovups (%rbx), %zmm1
    vmovups (%rcx), %zmm2
    vpandd high_halves{1to16}, %zmm1, %zmm3
    vpandd high_halves{1to16}, %zmm2, %zmm4
    vfmadd231ps %zmm3, %zmm4, %zmm0
    vpslld $16, %zmm1, %zmm1
    vpslld $16, %zmm2, %zmm2
    vfmadd231ps %zmm1, %zmm2, %zmm0
    vmovups %zmm0, (%rax)
    ldmxcsr mxcsr
    each restore_vector
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %r11
    pop %r10
    pop %r9
    pop %r8
    pop %rdi
    pop %rsi
    pop %rbp
    pop %rbx
    pop %rdx
    pop %rcx
    pop %rax
    add $16, %rsp
    iretq

.data
.balign 16
.macro address n
    .quad exception_\n
.endm
vectors:
    each address
mxcsr: .long 0
flush: .long 0x9fc0           // all exceptions masked, to nearest even, subnormals in and out are zero
high_halves: .long 0xffff0000
program_stack: .quad 0
.globl register_states
register_states: .long 0
idt_pointer: .word 32 * 16 - 1
    .quad idt
.balign 16
tss:
    .long 0
    .quad 0, 0, 0, 0
    .quad FAULT_STACK
    .fill 104 - 44
.balign 16
idt: .fill 32 * 16
