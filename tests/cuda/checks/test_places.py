"""What the text says about a line: the loops around it, its array, the large local variables."""

from minidl.cuda.checks.places import array_on, earlier_uses, enclosing_loops, large_locals

TEXT = """struct Big { float row[1 << 12]; int n; };
__global__ void k(float* x, int n) {
  for (int i = 0; i < n; ++i) {
    while (x[i] > 0)
      x[i] -= 1;
    x[i] = 2;  // for (comments do not count)
  }
  do {
    --n;
  } while (n);
  float few[4], many[64][64];
  double most[10000];
  Big big;
  __shared__ float tile[32][33];
  many[0][0] = tile[n][40] + few[n];
}
"""


def test_loops_around_a_line_innermost_first(tmp_path):
    path = tmp_path / "k.cu"
    path.write_text(TEXT)
    assert enclosing_loops(path, "k.cu", 5) == [4, 3]
    assert enclosing_loops(path, "k.cu", 6) == [3]
    assert enclosing_loops(path, "k.cu", 9) == [8]
    assert enclosing_loops(path, "k.cu", 11) == []
    assert enclosing_loops(path, "other.cuh", 5) == []


def test_large_local_variables_largest_first(tmp_path):
    path = tmp_path / "k.cu"
    path.write_text(TEXT)
    assert large_locals(path) == [12, 13]


def test_where_a_variable_stands_before(tmp_path):
    path = tmp_path / "k.cu"
    path.write_text("float s;\nint k, n;\nfor (;;) s += k;\nout = s;\n")
    assert earlier_uses(path, "k.cu", 4, "s") == [1, 3]


def test_the_array_that_a_type_means(tmp_path):
    path = tmp_path / "k.cu"
    path.write_text(TEXT)
    assert array_on(path, "k.cu", 15, "float [33]", set()) == "tile, a float [33]"
    assert array_on(path, "k.cu", 15, "float [4]", {"few"}) == "few, a float [4]"
    assert array_on(path, "k.cu", 9, "float [4]", set()) == "a float [4]"
