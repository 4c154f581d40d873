"""Planted bugs in the pages of minidl/plain, one for each page: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "the page adds no gradients where paths meet",
        "minidl/plain/autograd.py", "grad",
        "gradient[parent] + g if parent in gradient else g", "g",
        "tests/plain/test_autograd.py::test_values_and_gradients_are_the_real_ones"),
    Bug(
        "the page's ring sends the wrong chunk first",
        "minidl/plain/ring.py", "reduce_scatter",
        "(r - step) % n", "(r + 1 - step) % n",
        "tests/plain/test_ring.py::test_all_reduce_has_the_bits_of_the_real_one"),
    Bug(
        "the page takes the mean over ranks and not over samples",
        "minidl/plain/data_parallel.py", "mean_gradients",
        "n_samples / total", "1 / t.size",
        "tests/plain/test_data_parallel.py::test_the_weights_are_the_real_ones"),
    Bug(
        "the page's pipeline sums the loss over micro-batches",
        "minidl/plain/pipeline.py", "step",
        "1 / len(micro_batches)", "1",
        "tests/plain/test_pipeline.py::test_losses_and_gradients_have_the_bits_of_the_real_one"),
]
