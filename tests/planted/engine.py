"""Planted bugs in the engine, operators, layers, optimizers, precision and memory: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "a factor beside one zero has a gradient in scatter_reduce's product",
        "minidl/ops/extra/scatter.py", "ScatterProd.backward",
        "n_zeros - (factor == 0) == 0", "n_zeros <= 1",
        "tests/ops/test_every_op.py::test_gradient_equals_central_differences"),
    Bug(
        "an op's error is its own cause",
        "minidl/forward.py", "raise_explained",
        "if explained is error", "if False",
        "tests/test_function.py::test_no_error_is_its_own_cause"),
    Bug(
        "fp16 accumulates in fp16",
        "minidl/backend.py", "accumulate_dtype",
        'kind in "fV"', 'kind in "V"',
        "tests/test_backend.py::test_fp16_accumulates_in_fp32"),
    Bug(
        "an op runs on the current GPU, wherever its arrays lie",
        "minidl/backend.py", "using_device_of",
        "return cupy.cuda.Device(*found)", "return NO_GPU",
        "tests/cuda/test_other_device.py::test_on_the_stand_in"),
    Bug(
        "a leaf used twice is counted once",
        "minidl/backward.py", "leaf_uses",
        "uses.get(edge, 0) + 1", "1",
        "tests/test_backward.py::test_a_node_used_twice_gets_both_gradients_before_its_turn"),
    Bug(
        "a leaf is deposited with every gradient that reaches it",
        "minidl/backward.py", "walk",
        "waiting[edge] == 0 and edge", "edge",
        "tests/test_backward.py"
        "::test_on_grad_ready_fires_once_per_leaf_as_soon_as_it_is_complete"),
    Bug(
        "the walk keeps the graph that it has passed",
        "minidl/backward.py", "walk",
        "edges = node.saved_inputs", "saved_inputs",
        "tests/test_backward.py::test_the_walk_lets_go_of_the_nodes_it_has_passed"),
    Bug(
        "NumPy is asked to import an array on a GPU",
        "minidl/creation.py", "from_dlpack",
        "(2, 13)", "(13,)",
        "tests/test_creation.py::test_from_dlpack_gives_device_memory_to_cupy"),
    Bug(
        "linspace takes truth values",
        "minidl/creation.py", "linspace",
        'if dtype.kind == "b"', "if False",
        "tests/test_creation.py::test_linspace_of_truth_values_is_refused"),
    Bug(
        "an edge forgets which output it comes from",
        "minidl/fast_apply.py", "apply",
        "x.slot", "0",
        "tests/test_function.py::test_a_function_of_two_results_gets_two_gradients"),
    Bug(
        "a gradcheck without a float64 input passes",
        "minidl/gradcheck.py", "gradcheck",
        "if not checked:", "if False:",
        "tests/test_gradcheck.py::test_a_check_of_nothing_is_an_error"),
    Bug(
        "the free end is not counted as a piece",
        "minidl/memory/fragmentation.py", "first_fit",
        "span - end, 0", "0, 0",
        "tests/memory/test_fragmentation.py::test_a_replay_by_hand"),
    Bug(
        "pinned memory goes back to its pool before a GPU has read it",
        "minidl/cuda/host_memory.py", "CopyStream.copy",
        "x, host, self", "x, None, self",
        "tests/memory/test_offload_gpu.py"
        "::test_pinned_memory_is_lent_to_others_when_its_copies_are_over"),
    Bug(
        "a bucket is sent before a GPU has filled it",
        "minidl/cuda/host_memory.py", "SideStream.run",
        "stream.wait_event(event)", "pass",
        "tests/parallel/data/test_data_parallel_gpu.py"
        "::test_a_model_on_a_gpu_gets_the_bits_of_one_on_the_cpu"),
    Bug(
        "weights are overwritten while they are read",
        "minidl/cuda/host_memory.py", "to_device",
        "event, x, out", "stream.record(), x, out",
        "tests/cuda/test_host_memory.py"
        "::test_up_goes_what_is_there_after_the_device_has_read_the_old"),
    Bug(
        "activations are booked to the module that ran last",
        "minidl/memory/ledger.py", "Ledger.follow",
        "self.modules.pop()", "pass",
        "tests/memory/test_ledger.py"
        "::test_what_runs_after_a_submodule_belongs_to_the_module_around_it"),
    Bug(
        "freed arrays still count in the host's memory",
        "minidl/memory/offload.py", "Host._freed",
        "self.held_bytes -= n_bytes", "pass",
        "tests/memory/test_offload.py::test_a_gpt_with_dropout_gets_the_same_bits"),
    Bug(
        "ZeRO 1 shards the gradients",
        "minidl/memory/predict.py", "predict",
        "zero >= 2", "zero >= 1",
        "tests/memory/test_predict.py::test_the_papers_table"),
    Bug(
        "a segment that runs again draws new numbers",
        "minidl/memory/recompute.py", "_Segment.run_again",
        "generators.items(): generator.set_state(state)", "generators.items(): pass",
        "tests/memory/test_recompute.py"
        "::test_any_number_of_segments_gives_the_same_bits_dropout_included"),
    Bug(
        "a plan takes the least memory instead of the least time",
        "minidl/memory/recompute_plan.py", "plan",
        "way[1]", "way[0]",
        "tests/memory/test_recompute_plan.py::test_no_other_way_to_cut_fits_in_less_time"),
    Bug(
        "bytes that a graph saves count the leaves",
        "minidl/memory/saved_bytes.py", "saved_by_op",
        "{id(buffer_of(leaf.array)) for leaf in leaf_uses(roots)}", "set()",
        "tests/memory/test_saved_bytes.py::test_saved_bytes_counts_each_buffer_once_and_no_leaf"),
    Bug(
        "the formula of a linear layer casts one operand",
        "minidl/memory/workspace.py", "linear",
        "(m * k + k * p)", "m * k",
        "tests/memory/test_workspace.py::test_the_formula_of_a_linear_layer_equals_the_counter"),
    Bug(
        "the formula of attention has a part of q's gradient for each group of keys, however many",
        "minidl/memory/workspace.py", "attention",
        '-(-n_keys // block_of("tile", e)[0]), PARTS)', '-(-n_keys // block_of("tile", e)[0]), 99)',
        "tests/memory/test_workspace.py"
        "::test_the_formula_of_attention_over_many_keys_equals_the_counter"),
    Bug(
        "the formula of attention has parts of a GPU's gradient where there are none",
        "minidl/memory/workspace.py", "attention",
        "* dtype.itemsize if packed else gradient", "* dtype.itemsize",
        "tests/memory/test_workspace.py"
        "::test_the_formula_of_attention_on_device_arrays_equals_the_counter", on_stand_in=True),
    Bug(
        "a block of a Mode goes on after its end",
        "minidl/mode.py", "running",
        "_mode.reset(token)", "pass",
        "tests/test_mode.py::test_blocks_nest_and_end_also_by_an_error"),
    Bug(
        "switching kernels off switches them off for good",
        "minidl/mode.py", "running",
        "_mode.reset(token)", "pass",
        "tests/cuda/test_dispatch.py::test_pick_goes_by_the_switch_and_the_dtypes"),
    Bug(
        "a list of modules is an empty Sequential",
        "minidl/nn/containers.py", "Sequential.__init__",
        "not isinstance(module, Module)", "False",
        "tests/cli/test_wrong_commands.py::test_a_wrong_argument_is_named_with_what_is_wanted"),
    Bug(
        "a window's negatives are taken for real",
        "minidl/nn/delayed.py", "window_corrected",
        "(1 - p) / (1 - p + p_delayed)", "1.0",
        "tests/nn/test_delayed.py::test_a_window_is_corrected"),
    Bug(
        "nn.functional has the methods of Tensor, too",
        "minidl/nn/functional.py", "",
        '(ops.namespace("f"))', '(ops.namespace("f") | ops.namespace("m"))',
        "tests/nn/test_functional.py::test_it_has_what_the_operator_table_says_and_no_more"),
    Bug(
        "initial values leave the version",
        "minidl/nn/init.py", "constant_",
        "tensor.version += 1", "pass",
        "tests/nn/test_init.py"
        "::test_writing_initial_values_between_forward_and_backward_is_detected"),
    Bug(
        "a gradient is turned on, not back",
        "minidl/nn/llama.py", "Rotary.backward",
        "cos, -self", "cos, self",
        "tests/nn/test_llama.py::test_the_gradient_of_a_rotation"),
    Bug(
        "LoRA trains the base, too",
        "minidl/nn/lora.py", "LoRALinear.__init__",
        "self.weight.requires_grad_(False)", "pass",
        "tests/nn/test_lora.py::test_only_the_thin_matrices_are_trained"),
    Bug(
        "a loss module forgets its reduction",
        "minidl/nn/loss.py", "_Loss.forward",
        "_buffers, **self.options", "_buffers",
        "tests/nn/test_loss.py::test_a_loss_is_pytorchs"),
    Bug(
        "packed texts see each other",
        "minidl/nn/models.py", "GPT.one_text",
        "text[:, None, :, None] == text", "text[:, None, :, None] >= text",
        "tests/nn/test_packed.py::test_packed_texts_are_what_they_are_alone"),
    Bug(
        "GPT counts positions on the host",
        "minidl/nn/models.py", "GPT.positions",
        "return xp.arange", "return np.arange",
        "tests/precision/test_step_on_gpu.py::test_kernels_make_up_the_step", on_stand_in=True),
    Bug(
        "an MLP ends with an activation",
        "minidl/nn/models.py", "MLP",
        "layers[:-1]", "layers",
        "tests/nn/test_models.py::test_mlp_has_no_activation_at_the_end"),
    Bug(
        "a cast model keeps the gradients of the old dtype",
        "minidl/nn/module.py", "Module.to",
        "t.grad = None", "pass",
        "tests/nn/test_module.py::test_a_cast_forgets_the_gradients_of_the_old_dtype"),
    Bug(
        "one chosen expert's gate is 1",
        "minidl/nn/moe.py", "MoE.forward",
        "self.top_k > 1", "self.top_k > 0",
        "tests/nn/test_moe.py::test_the_router_of_one_choice_learns_from_the_loss"),
    Bug(
        "the reverse direction is not turned back",
        "minidl/nn/recurrent.py", "_Recurrent.forward",
        "flip(y, 0) if way else y", "y",
        "tests/nn/test_recurrent.py::test_outputs_states_and_gradients_equal_pytorchs"),
    Bug(
        "GPT's attention looks ahead",
        "minidl/nn/transformer.py", "CausalSelfAttention.forward",
        "is_causal=True", "is_causal=False",
        "tests/nn/test_transformer.py::test_a_block_does_not_look_ahead"),
    Bug(
        "an encoder's layers are one layer",
        "minidl/nn/transformer_encoder.py", "TransformerEncoder.__init__",
        "copy.deepcopy(encoder_layer)", "encoder_layer",
        "tests/nn/test_transformer_encoder.py::test_layers_start_equal_and_are_not_shared"),
    Bug(
        "a reflected operator keeps its operands' order",
        "minidl/ops/__init__.py", "_operator",
        "(other, self) if reflected else op(self, other)", "(self, other)",
        "tests/ops/test_every_op.py::test_gradient_equals_central_differences[pow base]"),
    Bug(
        "the squares that fill no block are not summed",
        "minidl/ops/loss.py", "sum_of_squares",
        " + np.vecdot(rest, rest)", "",
        "tests/ops/test_loss.py::test_squares_are_summed_without_an_array_of_them"),
    Bug(
        "dropped probabilities still reach the values' gradient",
        "minidl/ops/attention.py", "Attention._attend_backward",
        "kept *= p", "kept = p",
        "tests/ops/test_attention.py::test_dropout_drops_score_i_by_draw_i"),
    Bug(
        "attention by NumPy keeps lse in the dtype of q",
        "minidl/ops/attention.py", "Attention.forward",
        "v, o, lse", "v, o, lse if usable(q) else lse.astype(q.dtype)",
        "tests/ops/test_one_function.py::test_both_ways_save_the_same_arrays"),
    Bug(
        "a tensor's way to the GPU keeps the CPU's library",
        "minidl/ops/cast.py", "Transfer._moved",
        "self.xp = backend.xp_of([y])", "pass",
        "tests/cuda/test_device.py::test_a_tensor_moves_to_the_gpu_and_its_gradient_back", on_stand_in=True),
    Bug(
        "a cast to its own dtype makes a node",
        "minidl/ops/cast.py", "to",
        "None and input.dtype != dtype", "None",
        "tests/ops/test_cast.py::test_methods_name_their_dtype"),
    Bug(
        "smoothing gives ignored rows a gradient",
        "minidl/ops/cross_entropy.py", "by_numpy_backward",
        "(target != ignored) * g", "g",
        "tests/ops/test_loss.py::test_an_ignored_row_has_no_part_in_a_smoothed_loss"),
    Bug(
        "dropout scales by p",
        "minidl/ops/dropout.py", "inverse_keep",
        "(1.0 - p)", "p",
        "tests/ops/test_dropout.py::test_element_i_stays_if_draw_i_of_the_generator_reaches_p"),
    Bug(
        "cuBLAS gets the number of rows as the leading dimension of rows",
        "minidl/cuda/cublas.py", "view_layout",
        "max(row, n_cols) if", "n_rows if",
        "tests/cuda/test_cublas.py::test_products_of_all_views_are_those_of_numpy"),
    Bug(
        "on a GPU a minimum at places is computed as a maximum",
        "minidl/ops/extra/scatter.py", "_largest_at",
        "sign * x.astype(wide))", "x.astype(wide))",
        "tests/ops/test_every_op.py::test_cuda_gives_the_cpu_s_values_and_gradients",
        on_stand_in=True),
    Bug(
        "a bound of NaN is ignored on a GPU",
        "minidl/ops/select.py", "clipped",
        "x = x if min is None else xp.maximum(x, min)", "return xp.clip(x, min, max)",
        "tests/ops/test_every_op.py::test_cuda_gives_the_cpu_s_values_and_gradients",
        on_stand_in=True),
    Bug(
        "the embedding's plain gradient on a GPU subtracts running sums",
        "minidl/ops/embedding.py", "scatter_add_rows",
        "xp is not np", "xp is None",
        "tests/ops/test_embedding.py::test_an_inf_stays_in_its_row", on_stand_in=True),
    Bug(
        "the slope of a p-norm forgets the sign",
        "minidl/ops/extra/distance.py", "Norm.backward",
        "xp.sign(x) * slope", "slope",
        "tests/ops/test_every_op.py::test_gradient_equals_central_differences"),
    Bug(
        "einsum sums over a letter that a later operand needs",
        "minidl/ops/extra/einsum.py", "einsum",
        "(result).union(*(n for _, n in rest))", "(result)",
        "tests/ops/extra/test_einsum.py::test_it_is_numpys"),
    Bug(
        "a bag's mean counts its padding",
        "minidl/ops/extra/embedding_bag.py", "embedding_bag",
        "maximum(inside.sum(axis=1), 1)", "full(len(inside), max(inside.shape[1], 1))",
        "tests/nn/test_layers.py::test_embedding_bag_equals_pytorchs"),
    Bug(
        "a form with _ is not recorded",
        "minidl/ops/extra/in_place_forms.py", "form",
        "inplace.records(input, *args)", "False",
        "tests/ops/extra/test_in_place_forms.py"
        "::test_where_a_graph_is_recorded_it_is_pytorchs_value_and_gradient"),
    Bug(
        "instance norm averages the running variance over channels",
        "minidl/ops/extra/instance_norm.py", "instance_norm",
        "mean(axis=0)", "mean()",
        "tests/nn/test_layers.py::test_layer_equals_pytorchs_forward_and_backward"),
    Bug(
        "bilinear places are not at the middles of pixels",
        "minidl/ops/extra/interpolate.py", "positions",
        "(i + 0.5) * scale - 0.5", "i * scale",
        "tests/ops/test_every_op.py::test_values_and_gradients_equal_torch"),
    Bug(
        "a negative offset takes the diagonal above",
        "minidl/ops/extra/rearrange.py", "Diagonal.backward",
        "k - min(self.offset, 0), k + max(self.offset, 0)", "k, k + abs(self.offset)",
        "tests/ops/test_every_op.py::test_gradient_equals_central_differences"),
    Bug(
        "a circular border is taken of what was cropped",
        "minidl/ops/extra/rearrange.py", "pad",
        'mode == "circular"', "False",
        "tests/ops/extra/test_rearrange.py::test_wrong_arguments_are_refused"),
    Bug(
        "an LSTM's cell forgets the gradient of the step after it",
        "minidl/ops/extra/recurrent.py", "Lstm.backward",
        "gc = gc * f", "gc = gc * 0",
        "tests/nn/test_recurrent.py"
        "::test_backpropagation_through_time_equals_central_differences"),
    Bug(
        "drawing without replacement prefers small weights",
        "minidl/ops/extra/sampling.py", "Multinomial.forward",
        "(-u) / xp", "(-u) * xp",
        "tests/ops/extra/test_sampling.py::test_multinomial_has_the_frequencies_asked_for"),
    Bug(
        "scatter passes a gradient to what it wrote over",
        "minidl/ops/extra/scatter.py", "Scatter.backward",
        "gx[self.at] = 0", "pass",
        "tests/ops/test_every_op.py::test_values_and_gradients_equal_torch"),
    Bug(
        "a bucket's right end counts as inside",
        "minidl/ops/extra/search.py", "searchsorted",
        'side="right"', 'side="left"',
        "tests/ops/extra/test_search.py::test_buckets"),
    Bug(
        "sort from behind turns equal elements round",
        "minidl/ops/extra/sort.py", "order",
        "x.shape[axis] - 1 - backwards", 'xp.argsort(x, axis=axis, kind="stable")',
        "tests/ops/extra/test_sort.py::test_equal_elements_keep_their_order_in_both_directions"),
    Bug(
        "the slope of tan is 1 - y^2",
        "minidl/ops/extra/unary.py", "FORMULAS",
        "y: 1 + y", "y: 1 - y",
        "tests/ops/test_every_op.py::test_gradient_equals_central_differences"),
    Bug(
        "equal maxima get the whole gradient each",
        "minidl/ops/extreme.py", "Amax.backward",
        "(self.kept) / self.xp.maximum(n_best, 1)", "(self.kept)",
        "tests/ops/test_extreme.py"
        "::test_max_and_amax_share_among_equals_and_max_along_a_dim_does_not"),
    Bug(
        "a number beside an array of an index is one of the arrays, as in NumPy",
        "minidl/ops/index.py", "steps",
        "if not arrays:", "if True:",
        "tests/ops/test_index.py::test_numbers_and_none_come_before_arrays"),
    Bug(
        "an element that was overwritten still gets a gradient",
        "minidl/ops/index.py", "Setitem.backward",
        "put(gx, self.steps, 0)", "pass",
        "tests/ops/test_index.py::test_assignment_to_elements_is_recorded"),
    Bug(
        "in a file of ONNX the dimensions of arrays that are apart stay in their place",
        "minidl/infer/onnx/writers.py", "_gathered",
        "if dims != list(range(at, at + len(dims))):", "if False:",
        "tests/infer/onnx/test_export_index.py"),
    Bug(
        "recompute runs again as the modules train by then",
        "minidl/memory/recompute.py", "_Segment.run_again",
        "training_as(self.training)", "training_as({})",
        "tests/memory/test_recompute_settings.py"),
    Bug(
        "recompute draws again from the default generator of that time",
        "minidl/memory/recompute.py", "_Segment.run_again",
        "random.using(self.generator)", "random.using(random.default_generator())",
        "tests/memory/test_recompute_settings.py"),
    Bug(
        "a deep copy of a weight has its gradient",
        "minidl/nn/module.py", "Parameter.__deepcopy__",
        "twin.grad = twin.compressed_by = None", "pass",
        "tests/nn/test_module.py::test_a_deep_copy_of_a_model_has_no_gradients_and_no_hooks"),
    Bug(
        "max of a nan gives nobody a gradient",
        "minidl/ops/extreme.py", "Amax.backward",
        "(x == y) | (x != x)", "x == y",
        "tests/ops/test_extreme.py::test_the_gradient_goes_to_a_nan_as_the_result_is_one"),
    Bug(
        "clipping reads a generator that has been read before",
        "minidl/optim/clip.py", "_list",
        "inspect.GEN_CLOSED", "inspect.GEN_RUNNING",
        "tests/optim/test_clip.py::test_a_generator_that_was_read_before_is_refused"),
    Bug(
        "index_select takes a negative index from the end",
        "minidl/ops/index.py", "IndexSelect.forward",
        "0 <= int", "-n <= int",
        "tests/ops/test_index.py::test_index_select_refuses_what_torch_refuses"),
    Bug(
        "a write in place leaves the version as it was",
        "minidl/ops/inplace.py", "write",
        "x.version += 1", "pass",
        "tests/test_tensor.py"
        "::test_in_place_operators_under_no_grad_keep_the_memory_and_count_versions"),
    Bug(
        ">= is >",
        "minidl/ops/logic.py", "ge",
        'name="greater_equal"', 'name="greater"',
        "tests/ops/test_logic.py::test_binary"),
    Bug(
        "running statistics move again when a segment is recomputed",
        "minidl/ops/batch_norm.py", "BatchNorm.forward",
        "None and not current().replaying", "None",
        "tests/memory/test_recompute.py::test_batch_norm_moves_its_running_statistics_once"),
    Bug(
        "layer norm's gradient of the bias is the gradient of the last rows only",
        "minidl/ops/layer_norm.py", "by_numpy_backward",
        "gb += column_sums", "gb = column_sums",
        "tests/ops/test_norm.py::test_blocks_of_rows_do_not_change_the_result"),
    Bug(
        "erfc's tail loses a sign",
        "minidl/ops/normal.py", "erf",
        "(math.pi) - w", "(math.pi) + w",
        "tests/ops/test_activations.py::test_erf_is_right_to_the_last_digits"),
    Bug(
        "ceil_mode counts another window where one ends at the border",
        "minidl/ops/pool.py", "fit",
        "(s - 1)", "s",
        "tests/ops/test_conv.py::test_the_last_window_of_ceil_mode_starts_inside"),
    Bug(
        "bmm broadcasts a batch of one",
        "minidl/ops/products.py", "bmm",
        "b[0]", "b[0] != 1",
        "tests/ops/test_matmul.py::test_products_of_vectors_and_batches_refuse_other_shapes"),
    Bug(
        "a variance without degrees of freedom is nan",
        "minidl/ops/reduce.py", "Var.forward",
        "else np.inf", "else np.nan",
        "tests/ops/test_reduce.py::test_a_variance_without_degrees_of_freedom_is_infinite"),
    Bug(
        "cumsum's gradient in fp16 is summed in fp16",
        "minidl/ops/reduce.py", "Cumsum.backward",
        "dim, dtype=dtype", "dim",
        "tests/ops/test_reduce.py::test_fp16_sums_in_fp32"),
    Bug(
        "clamp stops the gradient at its bound",
        "minidl/ops/select.py", "Clamp.forward",
        "x <= max", "x < max",
        "tests/ops/test_select.py::test_clamp_passes_the_gradient_up_to_its_bounds"),
    Bug(
        "flip with dims named twice heeds one of them",
        "minidl/ops/shape.py", "flip",
        "bool(args) == (dims is not None)", "not args and dims is None",
        "tests/ops/test_shape.py::test_flip_wants_its_dims_once"),
    Bug(
        "softmax subtracts the largest of all rows",
        "minidl/ops/softmax.py", "by_numpy",
        "max(axis=axis, keepdims=True)", "max()",
        "tests/ops/test_softmax.py::test_each_row_has_a_maximum_of_its_own"),
    Bug(
        "Adagrad's rate decays from the first step",
        "minidl/optim/adagrad.py", "Adagrad.update",
        '(state["step"] - 1)', 'state["step"]',
        "tests/optim/test_other_optimizers.py"),
    Bug(
        "a parameter on all ranks counts on each",
        "minidl/optim/over_ranks.py", "square_sum",
        "2 / n", "2",
        "tests/parallel/model/test_parallelize.py"
        "::test_a_parameter_on_all_ranks_counts_once_in_the_norm"),
    Bug(
        "a whole weight among shards counts on every rank",
        "minidl/optim/over_ranks.py", "n_equal",
        " * others", "",
        "tests/parallel/test_mixed_parameters.py"
        "::test_the_norm_of_a_mixed_list_is_one_ranks_and_clipping_scales_all_of_it"),
    Bug(
        "the average takes decay of the new weights",
        "minidl/optim/ema.py", "EMA.update",
        "(1 - decay)", "decay",
        "tests/optim/test_ema.py::test_two_updates_by_hand"),
    Bug(
        "LAMB's correction is applied after the ratio as well",
        "minidl/optim/lamb.py", "LAMB.rates",
        "rates, 1.0", "rates, rates[:, 0] / rates[:, 1]",
        "tests/optim/test_layerwise.py::test_numbers_by_hand"),
    Bug(
        "a shard counts as one tensor",
        "minidl/optim/layerwise.py", "sums_over_ranks",
        "found[i].tensor", "found[i].index",
        "tests/parallel/zero/test_whole_tensors.py::test_every_stage_does_so"),
    Bug(
        "a resumed schedule applies at the next step only",
        "minidl/optim/lr_scheduler.py", "LRScheduler.load_state_dict",
        'group["lr"] = lr', "pass",
        "tests/optim/test_lr_scheduler.py::test_a_schedule_resumes_from_its_state_alone"),
    Bug(
        "a schedule that takes over goes on from the lr that it finds",
        "minidl/optim/lr_scheduler.py", "LRScheduler.enter",
        "self.value(base, 0)", 'group["lr"]',
        "tests/optim/test_lr_scheduler_pairs.py"),
    Bug(
        "in a sequence the momentum stays",
        "minidl/optim/lr_scheduler.py", "_WithMomentum._apply",
        "set_momentum(group, self.momentum(group, self.last_epoch))", "pass",
        "tests/optim/test_lr_scheduler_pairs.py"),
    Bug(
        "a schedule takes the groups' initial lr of the schedule made last",
        "minidl/optim/lr_scheduler.py", "LRScheduler._apply",
        "rule(group, base)", 'rule(group, group["initial_lr"])',
        "tests/optim/test_lr_scheduler_pairs.py"),
    Bug(
        "half precision weights have no master",
        "minidl/optim/master.py", "use_master_weights",
        "np.float16", "np.float64",
        "tests/optim/test_master.py"
        "::test_masters_are_the_weights_of_fp32_training_and_the_fp16_ones_their_cast"),
    Bug(
        "Muon orthogonalises the tall side",
        "minidl/optim/muon.py", "Muon.update",
        "1, rows / columns", "1, columns / rows",
        "tests/optim/test_muon.py::test_weights_equal_pytorchs_up_to_its_bfloat16"),
    Bug(
        "a step leaves the versions of the weights",
        "minidl/optim/optimizer.py", "Optimizer.step",
        "p.version += 1", "pass",
        "tests/optim/test_optimizer.py"
        "::test_a_step_moves_the_version_so_a_stale_graph_is_refused"),
    Bug(
        "a plateau endures one step less",
        "minidl/optim/plateau.py", "ReduceLROnPlateau.step",
        "self.num_bad_epochs > self", "self.num_bad_epochs >= self",
        "tests/optim/test_lr_scheduler_sequences.py::test_a_plateau_cuts_when_pytorchs_does"),
    Bug(
        "the linear rule takes the root",
        "minidl/optim/scaling.py", "scaled_rate",
        'k if rule == "linear" else math', "math",
        "tests/optim/test_scaling.py::test_linear_and_root"),
    Bug(
        "autocast narrows float64",
        "minidl/precision/amp.py", "_narrow",
        "itemsize <= 4", "itemsize <= 8",
        "tests/precision/test_amp.py::test_double_and_integers_are_left_alone"),
    Bug(
        "bfloat16 is multiplied in bfloat16",
        "minidl/precision/bf16.py", "forward",
        "wide = [widen(x) for x in arrays]", "wide = list(arrays)",
        "tests/precision/test_bf16.py::test_an_op_is_float32_s_and_a_rounding"),
    Bug(
        "ranks do not agree to skip a step",
        "minidl/precision/grad_scaler.py", "GradScaler._look",
        "_agreed(_bad(grads), optimizer)", "bool(_bad(grads)[0])",
        "tests/precision/test_grad_scaler.py::test_ranks_skip_together"),
    Bug(
        "a Gaussian takes the logarithm of zero",
        "minidl/random.py", "Generator.normal",
        "(u + 1)", "u",
        "tests/test_random.py::test_a_draw_of_zero_gives_a_finite_gaussian"),
    Bug(
        "a change in place is overlooked where a view of the input was saved",
        "minidl/saved.py", "pack",
        'getattr(s, "base", None)', "None",
        "tests/test_backward.py::test_in_place_change_behind_a_saved_view_is_detected"),
    Bug(
        "packs are undone in the order in which they were made",
        "minidl/saved.py", "pack",
        "reversed(undos)", "undos",
        "tests/test_saved.py::test_packs_are_undone_from_the_last_to_the_first"),
    Bug(
        "assigning data leaves the version as it was",
        "minidl/tensor.py", "Tensor.data",
        "self.version += 1", "pass",
        "tests/test_tensor.py::test_assigning_data_counts_a_version_and_keeps_the_shape"),
    Bug(
        "a view counts its changes alone",
        "minidl/forward.py", "share_memory",
        "y._memory = x.memory", "pass",
        "tests/test_versions.py::test_a_write_through_a_view_of_what_is_saved"),
    Bug(
        "a static forward records a graph",
        "minidl/static_forms.py", "_on_arrays",
        "grad=False", "grad=True",
        "tests/test_static_forms.py"
        "::test_no_graph_is_recorded_inside_and_none_is_kept_under_no_grad"),
    Bug(
        "lerp reaches its end only nearly",
        "minidl/ops/extra/composed.py", "lerp",
        "if weight < 0.5", "if weight < 9.0",
        "tests/ops/extra/test_composed.py::test_lerp_reaches_both_ends_exactly"),
    Bug(
        "GRUCell keeps the new state where it should keep the old one",
        "minidl/nn/cells.py", "GRUCell.forward",
        "z * (h - n)", "(1 - z) * (h - n)",
        "tests/nn/test_cells.py::test_two_steps_are_pytorchs"),
    Bug(
        "a truncated normal keeps what lies above its upper end",
        "minidl/nn/init.py", "trunc_normal_",
        "values > b", "values > 9 * b",
        "tests/nn/test_init.py::test_a_truncated_normal_has_the_moments_of_one"),
    Bug(
        "the fast apply does not look for views",
        "minidl/fast_apply.py", "apply",
        "result.base is not None or (arrays and result is arrays[0])", "False",
        "tests/test_versions.py::test_a_write_through_a_view_of_what_is_saved"),
    Bug(
        "an edge of the plain apply forgets which output it comes from",
        "minidl/function.py", "edge_from",
        "x.slot", "0",
        "tests/test_fast_apply.py"),
    Bug(
        "detach() counts its changes alone",
        "minidl/tensor.py", "Tensor.detach",
        "x._memory = self.memory", "pass",
        "tests/test_versions.py::test_a_write_through_a_view_of_what_is_saved"),
    Bug(
        "a saved result is not noted",
        "minidl/saved.py", "pack",
        "notes.append((memory, memory.version))", "pass",
        "tests/test_versions.py::test_a_result_that_is_changed_is_an_error_or_was_not_needed"),
    Bug(
        "a view keeps its way back after an assignment to its base",
        "minidl/ops/inplace.py", "_take_the_place",
        "before.replaced = True", "pass",
        "tests/test_versions.py::test_a_view_made_before_a_recorded_assignment"),
    Bug(
        "the indices of a maximum or a sort may change unseen",
        "minidl/ops/extreme.py", "with_indices",
        "[indices]", "[]",
        "tests/ops/test_every_op.py::test_what_backward_needs_cannot_change_unseen"),
    Bug(
        "an op in place overwrites an array that its own backward needs",
        "minidl/ops/inplace.py", "become",
        "x.array.copy()", "x.array",
        "tests/ops/extra/test_in_place_forms.py"
        "::test_where_a_graph_is_recorded_it_is_pytorchs_value_and_gradient"),
    Bug(
        "a hook on a leaf sees one gradient of several",
        "minidl/backward.py", "walk",
        "for hook in edge._hooks or ()", "for hook in ()",
        "tests/test_tensor.py::test_a_hook_changes_the_gradient_of_a_leaf_before_it_is_added"),
    Bug(
        "a hook on a result is called after its gradient was kept",
        "minidl/backward.py", "_observe",
        "for slot, hook in node.gradient_hooks", "for slot, hook in ()",
        "tests/test_tensor.py::test_a_hook_changes_the_gradient_of_a_result_for_all_below_it"),
    Bug(
        "the width of printed elements counts zeros, too",
        "minidl/printing.py", "_form",
        "np.isfinite(values) & (values != 0)", "np.isfinite(values)",
        "tests/test_printing.py::test_the_text_is_pytorchs"),
    Bug(
        "a function of NumPy goes on without the graph",
        "minidl/ops/convert.py", "_ufunc",
        "if x.requires_grad:", "if False:",
        "tests/test_tensor.py::test_functions_of_numpy_give_tensors_outside_of_the_graph"),
    Bug(
        "two tensors of one name take one place in a file",
        "minidl/snapshot/one_file.py", "_told",
        "while name in arrays or name ==", "while name ==",
        "tests/snapshot/test_one_file.py::test_names_that_meet_stay_apart"),
    Bug(
        "windows that share elements of an image overwrite each other",
        "minidl/ops/extra/columns.py", "to_image",
        "image[at] += parts", "image[at] = parts",
        "tests/ops/test_every_op.py::test_values_and_gradients_equal_torch"),
    Bug(
        "L-BFGS forgets what the latest step has shown",
        "minidl/optim/lbfgs.py", "LBFGS._next_direction",
        "self.pairs.append((s, y, 1 / curvature))", "pass",
        "tests/optim/test_lbfgs.py::test_every_call_of_the_closure_has_pytorchs_loss"),
    Bug(
        "of a dataset the rank comes before the number of ranks",
        "minidl/data/sampler.py", "DistributedSampler.__init__",
        '("num_replicas", "rank"), len(n)', '("rank", "num_replicas"), len(n)',
        "tests/test_idioms.py::test_a_program_prints_the_same_text"),
    Bug(
        "a decoder looks at itself where it should look at the encoder",
        "minidl/nn/transformer_decoder.py", "TransformerDecoderLayer._look",
        "self.multihead_attn(x, memory, memory,", "self.multihead_attn(x, x, x,",
        "tests/nn/test_transformer_encoder.py::test_a_whole_transformer_is_pytorchs"),
    Bug(
        "a product over a dim that a number does not have is the number",
        "minidl/ops/extra/composed.py", "cumprod",
        'normalize_dims(dim, input.ndim, "cumprod")', "(dim,)",
        "tests/ops/test_dims.py::test_a_dim_out_of_range_is_an_index_error"),
]
