"""Planted bugs in the pages of minidl/plain on one device: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "the page's cross entropy is a sum and not a mean",
        "minidl/plain/training.py", "cross_entropy",
        "sum() / n", "sum()",
        "tests/plain/test_training.py::test_the_losses_and_weights_are_the_real_ones"),
    Bug(
        "the page's Adam forgets to undo the start of v from zero",
        "minidl/plain/optimizers.py", "adam_step",
        "v / (1 - b2**t)", "v",
        "tests/plain/test_optimizers.py::test_adam_is_the_real_one"),
    Bug(
        "the page's causal mask hides a token from itself",
        "minidl/plain/attention.py", "causal_mask",
        "k=1", "k=0",
        "tests/plain/test_attention.py::test_outputs_and_gradients_are_the_real_ones"),
    Bug(
        "the page's RoPE turns the two halves in different directions",
        "minidl/plain/transformer.py", "rope",
        "[-one, zero]", "[one, zero]",
        "tests/plain/test_transformer.py::test_the_turn_is_the_real_one"),
    Bug(
        "the page's online softmax does not shrink the sum of earlier blocks",
        "minidl/plain/flash.py", "forward",
        "shrink * total", "total",
        "tests/plain/test_flash.py::test_outputs_and_gradients_are_the_real_ones"),
    Bug(
        "the page's gradient of a convolution's input forgets where a patch began",
        "minidl/plain/convolution.py", "gradients",
        "gx[:, :, i:i + oh, j:j + ow]", "gx[:, :, :oh, :ow]",
        "tests/plain/test_convolution.py::test_the_gradients_are_the_real_ones"),
    Bug(
        "the page's Kahan sum loses what an addition lost",
        "minidl/plain/floats.py", "kahan",
        "wanted = number + lost", "wanted = number",
        "tests/plain/test_floats.py::test_ones_are_swamped_in_order_alone"),
    Bug(
        "the page unscales gradients by the scale after it has grown",
        "minidl/plain/amp.py", "step",
        "np.float32(scale)", "np.float32(scale * 2 if good_steps + 1 == interval else scale)",
        "tests/plain/test_amp.py::test_scales_and_masters_have_the_bits_of_the_real_ones"),
    Bug(
        "the page's segment goes back without the gradient that came",
        "minidl/plain/recompute.py", "recompute",
        "(y * g).sum()", "y.sum()",
        "tests/plain/test_recompute.py::test_gradients_have_the_bits_of_those_without"),
    Bug(
        "the page counts the output of a network as needed, and not its input",
        "minidl/plain/memory.py", "needed",
        "sizes[:-1]", "sizes[1:]",
        "tests/plain/test_memory.py::test_the_real_engine_keeps_what_is_needed"),
    Bug(
        "the page goes on at the number of batches and not of samples",
        "minidl/plain/data.py", "batches",
        "range(used, n, batch_size)", "range(used * batch_size, n, batch_size)",
        "tests/plain/test_data.py::test_both_go_on_at_the_same_place"),
    Bug(
        "the page's queue has no bound",
        "minidl/plain/prefetch.py", "prefetch",
        "queue.Queue(n)", "queue.Queue()",
        "tests/plain/test_prefetch.py::test_a_thread_loads_n_and_one_more_ahead"),
    Bug(
        "the page's packed rows let a token see the text before",
        "minidl/plain/lengths.py", "mask",
        "text[:, None] == text", "text[:, None] >= text",
        "tests/plain/test_lengths.py::test_a_packed_row_and_its_mask_are_the_real_ones"),
    Bug(
        "the page joins the largest of equally frequent pairs",
        "minidl/plain/tokens.py", "learn",
        "min(counts, key=lambda pair: (-counts[pair], pair))",
        "max(counts, key=lambda pair: (counts[pair], pair))",
        "tests/plain/test_tokens.py::test_pairs_are_the_real_ones"),
    Bug(
        "the page's top-p leaves out the token that reaches p",
        "minidl/plain/sampling.py", "probabilities",
        "before = np.cumsum(p[likeliest]) - p[likeliest]", "before = np.cumsum(p[likeliest])",
        "tests/plain/test_sampling.py::test_the_possible_tokens_are_the_real_ones"),
]
