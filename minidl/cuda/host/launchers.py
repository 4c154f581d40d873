"""Writes the C++ that starts a compiled kernel: its exported launcher, in the flat or fibre form.

    flat     loops over blocks and threads, with the kernel inline in the innermost loop. If flat.py
             found the index, there is only one loop, over tiles of the index. A thread pool runs
             the loops (minidl_run_flat)
    fibre    a function that runs the kernel for one thread. The fibre engine calls it
             (minidl_run_fibres)

In both forms the launcher is exported as minidl_launch_<number>. It reads the kernel's arguments
from a MinidlLaunch (kernels/host/runtime.h).
Test: tests/cuda/host/test_flat.py, test_fibre.py
"""

import re


def unpacked(p, i):
    """Returns C++ code that reads argument i from the launch. p: the Parameter of this argument."""
    if p.kind == "scalar":
        return f"*(const {p.ctype}*)(L->arguments + {8 * i})"
    if p.kind == "struct":
        return f"**({p.ctype}* const*)(L->arguments + {8 * i})"
    return f"MinidlPointer(*(void* const*)(L->arguments + {8 * i}))"


def fibre(name, number, arguments):
    """Returns the C++ code of the exported launcher for a fibre kernel. arguments: a list with the
    C++ code that reads each argument."""
    args = "".join(f", {a}" for a in arguments)
    return f"""
static void minidl_thread_{number}(const MinidlLaunch* L, const uint3& thread,
                                     const uint3& block) {{
  {name}(thread, block, ::blockDim, ::gridDim{args});
}}
MINIDL_EXPORT int minidl_launch_{number}(const MinidlLaunch* L) {{
  return minidl_run_fibres(L, minidl_thread_{number});
}}
"""


def flat(name, plan, number, parameters, arguments):
    """Returns the C++ code of the exported launcher for a flat kernel.

    name: the kernel's name. For a template it is the name of an instance, such as 'scale<float>'.
    plan: the Plan from flat.py. arguments: a list with the C++ code that reads each argument."""
    simd = '_Pragma("omp simd")' if plan.simd else ""
    hidden = "threadIdx, blockIdx, block, grid"
    if not plan.linear:
        return f"""
__attribute__((flatten))
static void minidl_units_{number}(const MinidlLaunch* L, long long begin, long long end) {{
  const dim3 grid(L->grid[0], L->grid[1], L->grid[2]), block(L->block[0], L->block[1], L->block[2]);
  {_unpack(arguments)}
  ::gridDim = grid; ::blockDim = block;
  for (long long u = begin; u < end; ++u) {{
    const uint3 blockIdx = {{unsigned(u % grid.x), unsigned(u / grid.x % grid.y),
                            unsigned(u / grid.x / grid.y)}};
    ::blockIdx = blockIdx;
    for (unsigned z = 0; z < block.z; ++z)
      for (unsigned y = 0; y < block.y; ++y) {{
        {simd}
        for (int x = 0; x < (int)block.x; ++x) {{
          const uint3 threadIdx = {{(unsigned)x, y, z}};
          {"" if plan.simd else "::threadIdx = threadIdx;"}
          {name}({hidden}{_names(arguments)});
        }}
      }}
  }}
}}
MINIDL_EXPORT int minidl_launch_{number}(const MinidlLaunch* L) {{
  return minidl_run_flat(L, minidl_units_{number}, (long long)L->grid[0] * L->grid[1] * L->grid[2]);
}}
"""
    # `tile` is the number of elements of a tile. Without simd, the work for one element may be a
    # whole row. This is enough work for a CPU thread.
    tile = 2048 if plan.simd else 1
    t = plan.index_type
    # plan.bound uses the kernel's names of the parameters. `ours` maps these names to the
    # launcher's names.
    ours = {p.name: f"minidl_a{i}" for i, p in enumerate(parameters)}
    bound = re.sub(r"[A-Za-z_]\w*", lambda m: ours[m[0]], plan.bound) if plan.bound else ""
    bound = f"(long long)({bound})"
    end = bound if plan.whole else "threads"
    clip = f"if ({bound} < n) n = {bound};" if plan.bound and not plan.whole else ""
    return f"""
static long long minidl_extent_{number}(const MinidlLaunch* L) {{
  {_unpack(arguments)}
  const long long threads = (long long)L->grid[0] * L->block[0];
  long long n = {end};
  {clip}
  return n < 0 ? 0 : n;
}}
__attribute__((flatten))
static void minidl_units_{number}(const MinidlLaunch* L, long long begin, long long end) {{
  const dim3 grid(L->grid[0], L->grid[1], L->grid[2]), block(L->block[0], L->block[1], L->block[2]);
  {_unpack(arguments)}
  const long long n = minidl_extent_{number}(L), tiles = (n + {tile - 1}) / {tile};
  while (begin < end) {{
    const long long row = begin / tiles, first = begin - row * tiles;
    const long long last = first + (end - begin) < tiles ? first + (end - begin) : tiles;
    begin += last - first;
    const unsigned y = row % block.y, z = row / block.y % block.z,
                   by = row / block.y / block.z % grid.y, bz = row / block.y / block.z / grid.y;
    const uint3 threadIdx = {{0, y, z}}, blockIdx = {{0, by, bz}};
    const {t} stop = ({t})(last * {tile} < n ? last * {tile} : n);
    {simd}
    for ({t} minidl_x = ({t})(first * {tile}); minidl_x < stop; ++minidl_x)
      {name}({hidden}, minidl_x{_names(arguments)});
  }}
}}
MINIDL_EXPORT int minidl_launch_{number}(const MinidlLaunch* L) {{
  const long long n = minidl_extent_{number}(L);
  if ((long long)({t})n != n || ({t})n < 0)
    return minidl_refuse("its index of type {t} cannot count the threads of this launch; "
                         "use a wider type");
  const long long rows = (long long)L->grid[1] * L->grid[2] * L->block[1] * L->block[2];
  return minidl_run_flat(L, minidl_units_{number}, (n + {tile - 1}) / {tile} * rows);
}}
"""


def plain(name, number, arguments):
    """Returns the C++ code of a launcher for a copy of the kernel without the edits of flat.py. The
    launcher is exported, and runs one thread after the other. selfcheck.py compares the flat form,
    which has the edits, with this copy."""
    return f"""
static void minidl_plain_{number}(const MinidlLaunch* L, long long begin, long long end) {{
  const dim3 grid(L->grid[0], L->grid[1], L->grid[2]), block(L->block[0], L->block[1], L->block[2]);
  {_unpack(arguments)}
  ::gridDim = grid; ::blockDim = block;
  for (long long u = begin; u < end; ++u) {{
    ::blockIdx = uint3{{unsigned(u % grid.x), unsigned(u / grid.x % grid.y),
                       unsigned(u / grid.x / grid.y)}};
    for (unsigned z = 0; z < block.z; ++z)
      for (unsigned y = 0; y < block.y; ++y)
        for (unsigned x = 0; x < block.x; ++x) {{
          ::threadIdx = uint3{{x, y, z}};
          {name}(::threadIdx, ::blockIdx, block, grid{_names(arguments)});
        }}
  }}
}}
MINIDL_EXPORT int minidl_plain_launch_{number}(const MinidlLaunch* L) {{
  return minidl_run_flat(L, minidl_plain_{number}, (long long)L->grid[0] * L->grid[1] * L->grid[2]);
}}
"""


def _unpack(arguments):
    return " ".join(f"const auto minidl_a{i} = {a};" for i, a in enumerate(arguments))


def _names(arguments):
    return "".join(f", minidl_a{i}" for i in range(len(arguments)))
