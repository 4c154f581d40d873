"""Lists what the check form can find: the name and the remedy of each kind.

    KINDS      found by check.cpp, in the order of `Kind` in kernels/host/session.h
    FAULTS     {a signal of the processor: what the thread did}
    ENGINE     found by the fibre engine (kernels/host/fibre.cpp). An entry is (words, name,
               remedy). It is used if the words are in the engine's sentence
    COMPILER   {an option of the C++ compiler's warnings: name and remedy}

sentences.py adds the threads, the arrays and the lines.
Test: tests/cuda/checks/test_check_planted.py
"""

# (name, remedy) in the order of `Kind` in kernels/host/session.h
KINDS = [
    ("out of bounds",
     "Compare the index with the size before the access: `if (i < n)`, with < and not <=."),
    ("out of bounds",
     "The array is too small for this index: look at its size and at what the index can become."),
    ("misaligned access",
     "A vector of 2 or 4 elements must begin at a multiple of its own size: let the index of its "
     "first element be a multiple of 2 or 4, or load element by element."),
    ("read of unwritten shared memory",
     "Shared memory begins with garbage: write every element that is read later, before the "
     "barrier."),
    ("read of uninitialised output",
     "The array is an output and begins with garbage: write each element before you read it or add "
     "to it."),
    ("data race", "Put a {barrier} between the two accesses."),
    ("race between blocks",
     "Blocks run in any order: let each block use elements of its own, use atomics, or make two "
     "launches."),
    ("double write",
     "Only one thread should write an element: look at the index and its stride, or use atomics."),
    ("write to a const array",
     "The parameter is const, and callers and the compiler rely on it: write to another array, or "
     "drop the const."),
    ("division by zero", "A GPU would go on with a meaningless number: test the divisor first."),
    ("output not written", "Is the grid large enough, and the guard not too strict?"),
    ("shift too far",
     "A shift by the width of the number or more, or by less than 0, is undefined: a CPU and a "
     "GPU give different numbers. Test the distance, or shift a wider type."),
    ("out of bounds", "Look at the size of the array that the pointer points into."),
    ("out of bounds",
     "Other threads cannot use a thread's local variables: put values for them in shared memory."),
    ("stale pointer",
     "The pointer points to where an array or a local variable was in an earlier launch. Pass the "
     "array to this launch, and keep no address of a local variable."),
    ("segmentation fault", "Look at what the pointer or index on this line can become."),
    ("endless loop",
     "Look at what should end the loop: does it change, and can the thread that changes it run?"),
    ("stack overflow",
     "A thread has 512 KiB for its local arrays and calls: end the recursion, or make the arrays "
     "smaller, or use shared or global memory."),
    ("too much shared memory",
     "A block may have 48 KiB of __shared__ variables; more must be dynamic: `extern __shared__` "
     "and shared_mem=. Both together may have up to 227 KiB."),
    ("out of bounds",
     "The local array is too small for this index: look at its size and at what the index can "
     "become."),
    ("read of uninitialised local variable",
     "A local variable begins with garbage: write the variable, or every element of the array, "
     "before you read it."),
    ("stale pointer",
     "A local variable exists only until the closing brace of its block: declare it outside of "
     "this block."),
    ("not in shared memory",
     "ldmatrix reads only shared memory, and a GPU would read wrong values: copy the tile to a "
     "__shared__ array first."),
]
(OUT_OF_BOUNDS, BAD_INDEX, MISALIGNED, UNWRITTEN, UNINITIALISED, RACE, BLOCK_RACE, DOUBLE_WRITE,
 CONST_WRITE, DIVISION, NOT_ALL_WRITTEN, SHIFT, PAST_OBJECT, OTHER_STACK, STALE, FAULTED, ENDLESS,
 STACK_FULL, TOO_MUCH_SHARED, LOCAL_OUTSIDE, LOCAL_UNWRITTEN,
 LOCAL_ENDED, NOT_SHARED) = range(len(KINDS))  # fmt: skip
READ, WRITE, ATOMIC, ATOMIC_READ = range(4)  # as `How` in kernels/host/watch.h
NOW = ("reads", "writes", "atomically changes", "atomically reads")
BEFORE = ("read", "wrote", "atomically changed", "atomically read")

IN_SHARED = ("The __shared__ array is too small for this index: look at its size and at what the "
             "index can become.")
IN_DYNAMIC = (
    "Pass the bytes that the kernel uses, such as shared_mem=4 * threads, or look at the index.")
NEGATIVE = "The index is below 0: look at what is subtracted, and test `i >= 0` as well."
FENCE = ("If the other block uses an atomic to tell that it is done, it must call __threadfence() "
         "between its writes and that atomic.")
BLOCKS_WAIT = ("If it waits for another block: CUDA promises neither an order of blocks nor that "
               "they run at the same time. A block may only wait for a block that has begun: let "
               "each block take its number from an atomic counter, or make two launches.")
NULL = "The launch passed None for this pointer: test it, or pass an array."

# {number of a signal: text}. SIGILL, SIGTRAP, SIGFPE and SIGSEGV have these numbers on all systems
FAULTS = {
    4: "ran into a trap: __trap(), or code that the compiler considers impossible",
    5: "ran into a trap: __trap(), or code that the compiler considers impossible",
    8: "divides an integer by zero",
    11: "uses an address where there is nothing",
}  # fmt: skip
FAULT_REMEDIES = {8: KINDS[DIVISION][1]}

# (words in the error message of the fibre engine, name of the error, remedy). The engine is
# kernels/host/fibre.cpp.
ENGINE = [
    ("divergent barrier", "divergent barrier",
     "Move __syncthreads() out of the branch, and let no thread return before it."),
    ("divergent warp call", "divergent warp call",
     "All lanes of the mask must be at the same call: move it out of the branch."),
    ("which does not name it", "wrong mask",
     "The mask must have all lanes that make the call, and no other lanes. For 32 lanes it is "
     "0xffffffff."),
    ("which the mask does not name", "wrong mask",
     "A lane can only read from lanes of the mask: put the source lane in the mask, or change the "
     "source."),
    ("which has returned", "shuffle from an exited lane",
     "Keep all lanes of the warp until the last shuffle; guard the loads and stores instead."),
    ("does not exist", "shuffle from an exited lane",
     "Launch whole warps, a multiple of 32 threads, and guard the loads."),
    ("deadlock", "deadlock",
     "Some lanes of the mask never make this call: take them out of the mask, or move the call "
     "out of the branch."),
    ("repeated without end", "endless wait", "The thread that would end the wait never runs."),
    ("__trap()", "trap", "The kernel's own __trap() ends it here."),
    ("assertion failed", "assertion failed", "An assert() in the kernel failed: look at its "
     "condition."),
]

# {option of the compiler's warning: (name, remedy)}
COMPILER = {
    "uninitialized": ("uninitialised local variable", "Give it a value where it is declared."),
    "maybe-uninitialized": ("uninitialised local variable",
                            "On one path the variable gets no value: give it a value where it "
                            "is declared."),
    "return-local-addr": ("stale pointer",
                           "A local variable exists only until its function returns."),
    "dangling-pointer": ("stale pointer",
                         "A local variable exists only until its block or function ends."),
    "infinite-recursion": ("endless recursion", "The recursion needs a case that ends it."),
    "shift-count-overflow": ("shift too far", KINDS[SHIFT][1]),
    "shift-count-negative": ("shift too far", KINDS[SHIFT][1]),
    "div-by-zero": ("division by zero", KINDS[DIVISION][1]),
    "array-bounds": ("out of bounds", KINDS[BAD_INDEX][1]),
}
