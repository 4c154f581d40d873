// The context switch: pushes the callee-saved registers onto the present stack, exchanges the stack
// pointers, and pops the registers from the other stack.
//
//     void minidl_switch(void** save, void* load)
//
// minidl_switch is a function in assembly, because a compiler knows which registers a call may
// change. Inline assembly in C++ needs clobber lists, which no compiler checks, and a mistake in
// them is not noticed. A switch takes ten nanoseconds. ucontext's swapcontext takes twenty times as
// long, because it makes a system call to save the signal mask.
#ifdef __APPLE__
#define SYMBOL "_minidl_switch"
#else
#define SYMBOL "minidl_switch"
#endif

#if defined(__x86_64__)
// System V ABI: rbx rbp r12-r15 and rsp survive a call; save is in rdi, load in rsi.
asm(".text\n.p2align 4\n.globl " SYMBOL "\n" SYMBOL ":\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n");
#elif defined(__aarch64__)
// AAPCS64: x19-x30, sp and the low halves of v8-v15 survive a call; save is in x0, load in x1.
asm(".text\n.p2align 4\n.globl " SYMBOL "\n" SYMBOL ":\n"
    "  sub sp, sp, #160\n"
    "  stp x19, x20, [sp, #0]\n  stp x21, x22, [sp, #16]\n  stp x23, x24, [sp, #32]\n"
    "  stp x25, x26, [sp, #48]\n  stp x27, x28, [sp, #64]\n  stp x29, x30, [sp, #80]\n"
    "  stp d8, d9, [sp, #96]\n  stp d10, d11, [sp, #112]\n"
    "  stp d12, d13, [sp, #128]\n  stp d14, d15, [sp, #144]\n"
    "  mov x9, sp\n  str x9, [x0]\n"
    "  mov sp, x1\n"
    "  ldp x19, x20, [sp, #0]\n  ldp x21, x22, [sp, #16]\n  ldp x23, x24, [sp, #32]\n"
    "  ldp x25, x26, [sp, #48]\n  ldp x27, x28, [sp, #64]\n  ldp x29, x30, [sp, #80]\n"
    "  ldp d8, d9, [sp, #96]\n  ldp d10, d11, [sp, #112]\n"
    "  ldp d12, d13, [sp, #128]\n  ldp d14, d15, [sp, #144]\n"
    "  add sp, sp, #160\n"
    "  ret\n");
#else
#error minidl: fibres are written for x86-64 and arm64;
this processor needs a minidl_switch of its own in switch.cpp
#endif

#if defined(__linux__)
asm(".section .note.GNU-stack,\"\",%progbits\n.text\n");  // the stack is not executable
#endif
