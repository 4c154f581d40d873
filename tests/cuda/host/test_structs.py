"""A kernel takes structs, by value and behind pointers: records of NumPy with the same members."""

import numpy as np
import pytest

import minidl.cuda as cuda
from minidl.cuda import tool
from minidl.cuda.host import selfcheck

TEXT = """
struct Inner { char tag; double weight; };
typedef struct { int n; float by[3]; Inner inner; } Params;
struct Body { float3 at, v; float mass; };
template <class T> struct Pair { T a; int b; };
namespace inner { struct Grid { unsigned rows, columns; }; }

__global__ void by_value(double* y, Params p) {
  int i = threadIdx.x;
  if (i < p.n) y[i] = p.by[i % 3] * p.inner.weight + p.inner.tag;
}
__global__ void behind_a_pointer(double* y, const Params* __restrict__ p) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < p->n) y[i] = p->by[i % 3] * p->inner.weight + p->inner.tag;
}
__global__ void move(Body* bodies, const struct inner::Grid* grid, float dt) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < grid->rows * grid->columns) {
    Body& b = bodies[i];
    b.at.x += dt * b.v.x, b.at.y += dt * b.v.y, b.at.z += dt * b.v.z;
  }
}
__global__ void turn(Body bodies[]) {
  __shared__ Body row[8];
  row[threadIdx.x] = bodies[threadIdx.x];
  __syncthreads();
  bodies[threadIdx.x] = row[7 - threadIdx.x];
}
struct Closed;
__global__ void carries(float* y, const Closed* closed) { y[threadIdx.x] = closed != nullptr; }
template <class T> __global__ void pairs(Pair<T>* p, int n) {
  if (threadIdx.x < n) p[threadIdx.x].b += p[threadIdx.x].a;
}
"""
INNER = np.dtype([("tag", "i1"), ("weight", "f8")], align=True)
PARAMS = np.dtype([("n", "i4"), ("by", "f4", 3), ("inner", INNER)], align=True)
BODY = np.dtype([("at", "f4", 3), ("v", "f4", 3), ("mass", "f4")])
GRID = np.dtype([("rows", "u4"), ("columns", "u4")])
PAIR = np.dtype([("a", "f8"), ("b", "i4")], align=True)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("structs") / "structs.cu"
    path.write_text(TEXT)
    return path


@pytest.fixture(params=["auto", "fibre", "check"])
def launch(request, file):
    """launch(name, block, *args): run the kernel in one of three forms."""
    def launch(name, block, *args):
        if request.param == "check":
            report = cuda.check(file, 1, block, args, name=name)
            assert not report.errors and not report.warnings, str(report)
        else:
            cuda.kernel(file, name, form=request.param)(1, block, args)

    return launch


def bodies(n):
    found = np.zeros(n, BODY)
    found["at"], found["v"] = np.random.default_rng(2).standard_normal((2, n, 3))
    found["mass"] = np.arange(n)
    return found


@pytest.mark.parametrize("name", ["by_value", "behind_a_pointer"])
def test_members_of_all_kinds(launch, name):
    p = np.array([(5, (0.5, 1.5, 2.5), (3, 2.0))], PARAMS)
    y = np.zeros(8)
    launch(name, 8, y, p[0] if name == "by_value" else p)
    np.testing.assert_array_equal(y, [4, 6, 8, 4, 6, 0, 0, 0])


def test_structs_are_written_behind_a_pointer(launch):
    b = bodies(6)
    want = b.copy()
    want["at"] += np.float32(0.1) * b["v"]
    launch("move", 8, b, np.array([(2, 3)], GRID), 0.1)
    # with an fma one rounding less
    np.testing.assert_allclose(b["at"], want["at"], rtol=1e-6, atol=1e-7)
    assert (b["v"] == want["v"]).all() and (b["mass"] == want["mass"]).all()


def test_structs_go_through_shared_memory(launch):
    b = bodies(8)
    want = b[::-1].copy()
    launch("turn", 8, b)
    assert b.tobytes() == want.tobytes()


def test_a_struct_of_a_template(launch):
    p = np.array([(0.5 + i, i) for i in range(4)], PAIR)
    launch("pairs<double>", 4, p, 3)
    np.testing.assert_array_equal(p["b"], [0, 2, 4, 3])


@pytest.mark.parametrize("given, got", [
    (np.zeros(6, np.dtype([("at", "f4", 3), ("v", "f4", 3)])), "24 bytes each"),
    (np.zeros((6, 7), np.float32), r"an array of float32 with shape \(6, 7\), 4 bytes each"),
    (np.zeros(6, "V28"), "an array of |V28"), (np.zeros((), BODY)[()], "pass an array"),
    (bodies(12)[::2], "contiguous"), (5, "pass an array")])
def test_another_array_is_refused(file, given, got):
    with pytest.raises((TypeError, ValueError), match=f"kernel turn.*{got}"):
        cuda.kernel(file, "turn")(1, 8, (given,))


def test_a_struct_that_is_only_read_may_be_read_only(file):
    b, grid = bodies(6), np.array([(2, 3)], GRID)
    grid.flags.writeable = False
    cuda.kernel(file, "move")(1, 8, (b, grid, 1.0))
    b.flags.writeable = False
    with pytest.raises(ValueError, match="'bodies' is not const in the kernel"):
        cuda.kernel(file, "move")(1, 8, (b, grid, 1.0))


def test_a_struct_of_unknown_members_is_only_passed_on(launch):
    for closed, want in (np.zeros(3, np.uint8), 1), (None, 0):
        y = np.full(4, 7, np.float32)
        launch("carries", 4, y, closed)
        assert (y == want).all()


def test_the_tool_shows_how_to_make_structs(file, capsys):
    tool.check(file)
    shown = capsys.readouterr().out
    assert "p = np.zeros((), Params)  # Params = np.dtype([...], align=True), with the " in shown
    assert 'kernel("structs.cu", "by_value")(4, 256, (y, p,))' in shown


def test_an_index_behind_the_last_struct_is_found(file):
    errors = cuda.check(file, 1, 8, (bodies(7),), name="turn").errors
    assert any(f.kind == "out of bounds" and "bodies[7]" in f.text for f in errors), errors


def test_the_self_check_compares_member_by_member():
    class Kernel:
        signature = "k(Body* b)"

    class Part:
        name = "b"

    plain = bodies(3)
    plain["v"][1] = np.nan
    fast = plain.copy()
    fast["at"] *= 1 + 1e-6  # rounding
    selfcheck._compare(Kernel, Part, plain, fast)
    fast["at"][2, 1] += 1
    with pytest.raises(cuda.KernelError, match=r"gives b\[2, 1\].at = "):
        selfcheck._compare(Kernel, Part, plain, fast)
