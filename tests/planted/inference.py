"""Planted bugs in plans, requests in batches, ONNX: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "a batch that fails fails all its requests",
        "minidl/infer/batcher.py", "Batcher._answers",
        "if n == 1: return 0, [(False, error)]", "return 0, [(False, error)] * n",
        "tests/infer/test_batcher.py::test_errors_of_one_request_are_its_own"),
    Bug(
        "relu makes 0 of NaN in generated code",
        "minidl/infer/code.py", "EXPRESSIONS",
        '"({0} < 0.0f ? 0.0f : {0})"', '"({0} > 0.0f ? {0} : 0.0f)"',
        "tests/infer/test_lower.py::test_softmax_norms_and_numbers_that_are_not_finite"),
    Bug(
        "after a product every operand as wide as the result is one row",
        "minidl/infer/code.py", "operand",
        "and math.prod(value.shape) == shape[-1]", "",
        "tests/infer/test_lower.py::test_after_a_product_an_operand_of_any_shape_is_broadcast"),
    Bug(
        "making the plan of a step leaves its traces in the cache",
        "minidl/infer/decoder.py", "Decoder.plan",
        "a[...] = before", "pass",
        "tests/infer/test_decoder.py::test_the_likeliest_text_is_the_models_own"),
    Bug(
        "a line counts as read by itself",
        "minidl/infer/graph.py", "Graph.verify",
        'value not in known: raise ValueError(f"line', 'False: raise ValueError(f"line',
        "tests/infer/test_graph.py::test_the_verifier_refuses_what_could_not_run"),
    Bug(
        "by Winograd only the first row of an image has its border",
        "minidl/infer/images.py", "conv",
        "row < {rows}", "row < 1",
        "tests/infer/test_lower.py::test_a_convolution_of_many_channels_by_winograd"),
    Bug(
        "a request's delay counts from when the plan is free",
        "minidl/infer/load.py", "simulate",
        "(free, min(arrivals[i] + max_delay, full))", "(free, arrivals[i]) + max_delay",
        "tests/infer/test_batcher.py::test_littles_law_holds_on_a_simulated_clock"),
    Bug(
        "values that meet at one step may share bytes",
        "minidl/infer/memory.py", "meet",
        "first <= b.last and b.first <= a", "first < b.last and b.first < a",
        "tests/infer/test_memory.py"
        "::test_200_random_graphs_are_within_a_tenth_of_the_bound_and_never_overlap"),
    Bug(
        "a branch of If takes a constant from outside that has the name of its own",
        "minidl/infer/onnx/load.py", "Model.run",
        "scope.maps[0] if isinstance(scope, ChainMap) else scope", "scope",
        "tests/infer/onnx/test_operators.py::test_the_branches_of_if_have_constants_of_their_own"),
    Bug(
        "a norm takes a scale of one number for one of the whole row",
        "minidl/infer/onnx/layers.py", "RMSNormalization",
        "np.float32 and scale", "np.float32 or scale",
        "tests/infer/onnx/test_operators.py::test_norms_with_a_scale_that_is_broadcast"),
    Bug(
        "a window of attention has no end to the right",
        "minidl/infer/onnx/layers.py", "_bias",
        "(right < 0)", "(right < 9)",
        "tests/infer/onnx/test_operators.py::test_attention_looks_into_its_window"),
    Bug(
        "the limits of clamp are written in the dtype of integers",
        "minidl/infer/onnx/writers.py", "_alike",
        "else _by(v, node) for", "else x for",
        "tests/infer/onnx/test_every_writer.py::test_every_writer_is_called_and_read_back"),
    Bug(
        "isfinite is written as neither NaN nor an infinity at once",
        "minidl/infer/onnx/writers.py", "LAMBDAS",
        '"Or", [w.add("IsNaN", xs)', '"And", [w.add("IsNaN", xs)',
        "tests/infer/onnx/test_every_writer.py::test_every_writer_is_called_and_read_back"),
    Bug(
        "bits of bool are written as BitwiseAnd, which ONNX has for whole numbers",
        "minidl/infer/onnx/writers.py", "_bitwise",
        "of_bool if node.output.dtype == bool else of_int", "of_int",
        "tests/infer/onnx/test_export.py::test_bits_of_bool_are_not_bitwise_operators"),
    Bug(
        "a file of ONNX may ask for a result of any size",
        "minidl/infer/onnx/load.py", "Model.check_size",
        "n_bytes > self.most_bytes", "n_bytes < 0",
        "tests/infer/onnx/test_hostile.py::test_most_bytes_is_what_the_user_says"),
    Bug(
        "a scale for each row lies along the columns",
        "minidl/infer/onnx/quantized.py", "QLinearMatMul",
        "_of_rows(a_scale) * b_scale", "a_scale * b_scale",
        "tests/infer/onnx/test_operators.py"
        "::test_a_product_of_bytes_has_a_scale_for_each_row_and_column"),
    Bug(
        "a slice backwards leaves out the first element",
        "minidl/infer/onnx/arrange.py", "Slice",
        "end if end >= 0 else None", "max(end, 0)",
        "tests/infer/onnx/test_operators.py::test_slices_backwards_beyond_the_ends"),
    Bug(
        "a loop runs once more",
        "minidl/infer/onnx/control.py", "Loop",
        "i < limit.item", "i <= limit.item",
        "tests/infer/onnx/test_operators.py::test_a_loop_is_unrolled_and_a_branch_chosen"),
    Bug(
        "whole numbers are divided rounding down",
        "minidl/infer/onnx/elements.py", "FORMULAS",
        '"trunc" if', '"floor" if',
        "tests/infer/onnx/test_operators.py::test_whole_division_rounds_towards_zero"),
    Bug(
        "an optimised graph is exported without its steps",
        "minidl/infer/onnx/export.py", "Writer.node",
        "None or node.steps or node.pad", "None",
        "tests/infer/onnx/test_export.py"
        "::test_what_has_no_operators_and_optimised_graphs_are_refused"),
    Bug(
        "SAME_UPPER pads the other side",
        "minidl/infer/onnx/layers.py", "_window",
        'auto_pad == "SAME_UPPER"', 'auto_pad == "SAME_LOWER"',
        "tests/infer/onnx/test_operators.py::test_padding_that_differs_by_side"),
    Bug(
        "an attribute that nobody knows is overlooked",
        "minidl/infer/onnx/load.py", "Model._arguments",
        "if unknown:", "if False:",
        "tests/infer/onnx/test_load.py"
        "::test_operators_attributes_and_dtypes_are_refused_by_name"),
    Bug(
        "a dtype that is not here becomes float32",
        "minidl/infer/onnx/operator.py", "dtype_of",
        "if number not in NAMES:", "if NAMES.setdefault(number, np.float32) is None:",
        "tests/infer/onnx/test_load.py"
        "::test_operators_attributes_and_dtypes_are_refused_by_name"),
    Bug(
        "a zero point of a product is not subtracted",
        "minidl/infer/onnx/quantized.py", "_wide",
        "zero is None", "True",
        "tests/infer/onnx/test_operators.py::test_products_of_whole_numbers_are_exact"),
    Bug(
        "a GRU's gates in ONNX's order",
        "minidl/infer/onnx/recurrent.py", "GRU",
        "1, 0, 2", "0, 1, 2",
        "tests/infer/onnx/test_operators.py::test_gru_by_its_formula"),
    Bug(
        "a reversed sum starts at the front",
        "minidl/infer/onnx/reduce.py", "_running",
        "np.flip(y, axis) if reverse else y", "y",
        "tests/infer/onnx/test_operators.py::test_reductions_of_nothing_and_orders"),
    Bug(
        "half a pixel is forgotten",
        "minidl/infer/onnx/resize.py", "_positions",
        "scale - 0.5", "scale",
        "tests/infer/onnx/test_operators.py::test_resize_of_a_ramp"),
    Bug(
        "a rotation of ONNX turns the second half back",
        "minidl/infer/onnx/writers.py", "rotary",
        "(a, sin)", "(b, sin)",
        "tests/infer/onnx/test_export.py::test_models_there_and_back"),
    Bug(
        "0 - x is x",
        "minidl/infer/passes/algebra.py", "unchanged",
        '"mul", "add"', '"mul", "add", "sub"',
        "tests/infer/passes/test_algebra.py::test_what_is_replaced"),
    Bug(
        "batch norm folds into a product that others read",
        "minidl/infer/passes/batch_norm.py", "folds",
        "!= 1", "< 1",
        "tests/infer/passes/test_batch_norm.py::test_a_product_that_others_read_stays"),
    Bug(
        "the steps of two chains keep their numbers when they are joined",
        "minidl/infer/passes/chain.py", "join",
        "x[1] + shift", "x[1]",
        "tests/infer/passes/test_chain.py::test_both_operands_may_be_chains"),
    Bug(
        "lines with other attributes are the same",
        "minidl/infer/passes/common.py", "common",
        "(node.attributes), _key(node.steps)", "(node.steps)",
        "tests/infer/passes/test_common.py"
        "::test_other_attributes_operands_and_constants_are_other_lines"),
    Bug(
        "a folded view stays a view of its parameter",
        "minidl/infer/passes/constant.py", "constant",
        "array.copy()", "array[...]",
        "tests/infer/passes/test_constant.py::test_a_folded_view_of_a_parameter_is_a_copy"),
    Bug(
        "a step goes to a product that others read",
        "minidl/infer/passes/epilogue.py", "only_user",
        "len(found) == 1", "found",
        "tests/infer/passes/test_epilogue.py::test_a_product_that_others_read_keeps_its_result"),
    Bug(
        "a border is written for readers who want none",
        "minidl/infer/passes/layout.py", "_pad",
        "== 1", ">= 1",
        "tests/infer/passes/test_layout.py::test_readers_who_want_other_borders_get_copies"),
    Bug(
        "a pooling joins a convolution that others read, too",
        "minidl/infer/passes/pooling.py", "pooling",
        "(users[image]) > 1", "(users[image]) > 2",
        "tests/infer/passes/test_pooling.py::test_other_poolings_stay"),
    Bug(
        "the pixels beyond the last window of an odd image are pooled, too",
        "minidl/infer/images.py", "conv",
        "!= (oh, ow)", "> (oh, ow)",
        "tests/infer/passes/test_pooling.py::test_nothing_is_written_beyond_the_last_window"),
    Bug(
        "of a window's pixels the last of a row is kept, not the largest",
        "minidl/infer/images.py", "conv",
        "(h | pixel) % 2", "h % 2",
        "tests/infer/passes/test_pooling.py::test_a_pooled_convolution"),
    Bug(
        "a plan hands out the arena itself",
        "minidl/infer/program.py", "Plan.__call__",
        "y.copy()", "y",
        "tests/infer/test_program.py::test_the_result_is_the_callers_own"),
    Bug(
        "a launch on another stream is not waited for",
        "minidl/infer/streams.py", "assign",
        "[j], -1", "[j], 0",
        "tests/infer/test_streams.py"
        "::test_all_that_a_launch_needs_is_over_and_no_event_is_too_many"),
    Bug(
        "constants of the two traces are not compared",
        "minidl/infer/trace.py", "_compare",
        "(y.array is None) and _equal(x.array, y.array)", "(y.array is None)",
        "tests/infer/test_trace.py::test_numpy_on_the_data_is_refused"),
    Bug(
        "a plan is traced with weights on a GPU",
        "minidl/infer/trace.py", "trace",
        'refuse_gpu("trace", model, *inputs)', "pass",
        "tests/infer/test_on_gpu.py::test_what_is_on_a_gpu_is_refused_with_the_remedy", on_stand_in=True),
]
