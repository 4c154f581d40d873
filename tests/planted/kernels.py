"""Planted bugs in the kernels, their launches, what runs and checks them: see bug.py."""

from tests.planted.bug import Bug

BUGS = [
    Bug(
        "what clang compiles has guards, and blocks share their shared memory",
        "minidl/cuda/host/cpu.py", "_load",
        'more and chosen.kind == "gnu"', "more",
        "tests/cuda/host/test_compiler.py::test_clang_gets_no_guards_of_shared_memory"),
    Bug(
        "the cores are asked for by a call that macOS does not have",
        "minidl/backend.py", "cores",
        'hasattr(os, "sched_getaffinity")', "True",
        "tests/test_without_proc.py::test_a_kernel_is_compiled_and_launched"),
    Bug(
        "a program under watch does not know it",
        "minidl/cuda/run.py", "is_watched",
        "is not _launch", "is None",
        "tests/cuda/test_tool.py"
        "::test_a_program_under_watch_knows_it_and_does_not_stay_silent"),
    Bug(
        "where the disk is full a dropout's numbers are drawn twice",
        "minidl/ops/dropout.py", "Dropout.forward",
        "if self.state is None:", "if True:",
        "tests/test_no_room.py::test_the_second_run_of_recompute_draws_the_numbers_of_the_first"),
    Bug(
        "where the disk is full an optimizer's state goes on twice",
        "minidl/optim/layerwise.py", "Layerwise.update_group",
        "fusable(params, grads, *self.kernels)", "fusable(params, grads)",
        "tests/test_no_room.py::test_an_optimizer_takes_each_step_once"),
    Bug(
        "a second disk that fills ends the program",
        "minidl/cuda/host/compiler.py", "own_folder",
        "(None, MEMORY)[len(_made):]", "(None,)[len(_made):]",
        "tests/cuda/host/test_compiler.py::test_a_disk_that_fills_between_two_kernels"),
    Bug(
        "a library in the cache is loaded without its checksum",
        "minidl/cuda/host/compiler.py", "is_whole",
        "told == hashlib.sha256(data).hexdigest()", "True",
        "tests/cuda/host/test_compiler.py::test_a_library_without_its_checksum_is_made_again"),
    Bug(
        "a library of another user is loaded",
        "minidl/own_files.py", "is_ours",
        "about.st_uid in owners and not", "not",
        "tests/cuda/host/test_compiler.py::test_a_library_of_another_user_is_not_loaded"),
    Bug(
        "an overflow does not stop the update",
        "kernels/cpu/adamw.cu", "adamw_chunks",
        "&& !(skip && *skip)", "",
        "tests/optim/test_adam_kernel.py::test_skip_leaves_everything_as_it_was"),
    Bug(
        "an element gets the bias of its row",
        "kernels/add3.cu", "add3_relu_bias",
        "bias[i % cols]", "bias[i / cols]",
        "tests/tutorials/test_exercises.py::test_the_tutorial_passes_its_own_grader"),
    Bug(
        "a row of shared attention sees one key too few",
        "kernels/attention.cu", "attention_shared",
        "j0 + 1 :", "j0 :",
        "tests/ops/test_attention_kernel.py::test_every_rung_equals_the_formula"),
    Bug(
        "dropout in a tile transposes its draws",
        "kernels/cpu/attention_tile.cu", "attention_tile",
        "kept[j]", "kept[i]",
        "tests/ops/test_attention_mask.py::test_every_rung_equals_the_formula"),
    Bug(
        "Philox ends a round early",
        "kernels/common.cuh", "philox",
        "10; ++round", "9; ++round",
        "tests/cuda/host/test_common.py::test_random_bits_are_those_of_the_generator"),
    Bug(
        "a thread that saw minus infinity alone loses what is no number",
        "kernels/cross_entropy.cu", "online",
        "(top > m)", "(top == -INFINITY) continue; if (top > m)",
        "tests/ops/test_cross_entropy_kernel.py::test_what_is_no_number_makes_the_loss_none"),
    Bug(
        "the last few elements are taken for eight",
        "kernels/cpu/dropout.cu", "dropout",
        "i >= 8", "i >= 1",
        "tests/cuda/test_watched.py::test_dropout"),
    Bug(
        "an owner adds the rows before it, not those behind",
        "kernels/embedding_grad.cu", "add_owned",
        "int begin = owner; begin < n", "int begin = 0; begin <= owner",
        "tests/ops/test_embedding_kernel.py::test_the_other_rungs_give_the_same"),
    Bug(
        "gelu's slope forgets the density",
        "kernels/gelu.cu", "slope_of",
        "x * slope;", "slope;",
        "tests/ops/test_gelu_kernel.py::test_equals_the_formula_forward_and_backward"),
    Bug(
        "a CPU thread that ends leaves its stacks",
        "kernels/host/fibre.cpp", "make_engine",
        "pthread_setspecific(at_thread_end, engine);", "",
        "tests/cuda/host/test_fibre.py::test_a_cpu_thread_that_ends_gives_its_stacks_back"),
    Bug(
        "the type before __shared__ hides that a kernel wants dynamic memory",
        "minidl/cuda/host/scan.py", "shared_first",
        "begin = words.start() if words else", "begin =",
        "tests/cuda/host/test_shared_guards.py::"
        "test_the_words_of_a_declaration_may_stand_in_any_order"),
    Bug(
        "the sync of one large tile orders the threads of all",
        "kernels/host/shadow.h", "in_tile",
        "t / n_threads == me / n_threads &&", "",
        "tests/cuda/host/test_features.py::test_a_tile_orders_its_own_threads_alone"),
    Bug(
        "a large tile hands out its values before all have put theirs",
        "kernels/host/cooperative_groups.h", "reduce",
        "value<T>(thread_rank() / 32) = v; sync(file, line);", "value<T>(thread_rank() / 32) = v;",
        "tests/cuda/host/test_features.py::test_tiles_larger_than_a_warp"),
    Bug(
        "an array whose elements are smaller than the struct is passed for it",
        "minidl/cuda/host/arguments.py", "_other_pointer",
        "size and not (a.dtype.names and a.itemsize == size)", "size and not a.dtype.names",
        "tests/cuda/host/test_structs.py::test_another_array_is_refused"),
    Bug(
        "e^x ends a degree early",
        "kernels/host/float_math.h", "minidl_exp_scaled",
        "0.001381446490995586f; p = p * r +", "",
        "tests/cuda/host/test_float_math.py::test_error_in_units_in_the_last_place"),
    Bug(
        "a fault of a kernel is one of Python",
        "kernels/host/guard.cpp", "on_fault",
        "jump(s, FAULT);", "pass_on(before_fault[signal], signal, info, context);",
        "tests/cuda/host/test_guard.py::test_a_fault_is_an_error_that_names_the_kernel"),
    Bug(
        "a variable that has ended is forgotten at once",
        "kernels/host/locals.cpp", "minidl_local_ends",
        "(inner) l", "(false) l",
        "tests/cuda/checks/test_check_child.py::test_a_bug_is_found_by_name_and_line"),
    Bug(
        "wide accesses of shared memory go by whole warps",
        "kernels/host/profile.cpp", "wavefronts",
        "size <= 4 ? 32 : size <= 8 ? 16 : 8", "32",
        "tests/cuda/checks/test_profile.py::test_wide_accesses"),
    Bug(
        "threads wake on the processor of the one that launches",
        "kernels/host/runtime.cpp", "keep_apart",
        "CPU_CLR(here, &set);", "",
        "tests/cuda/host/test_flat.py"
        "::test_threads_keep_off_the_processor_of_the_one_that_launches"),
    Bug(
        "a barrier orders the accesses after it, too",
        "kernels/host/shadow.h", "barrier",
        "at_barrier + 1;", "at_barrier;",
        "tests/cuda/checks/test_check_planted.py::test_bug_is_found_by_name_at_its_line"),
    Bug(
        "a lane of a tensor core takes its neighbour's column",
        "kernels/host/tensor_core.h", "mma",
        "2 * t + column", "2 * t + 1 - column",
        "tests/cuda/host/test_tensor_core.py::test_mma_multiplies_what_the_lanes_hold"),
    Bug(
        "a bad index is read on a GPU",
        "kernels/index_check.cu", "index_check",
        "v = instead;", "",
        "tests/cuda/test_index_check.py::test_the_kernel_makes_indices_safe_and_notes_one"),
    Bug(
        "the vectors of a row of values that make no four are left out",
        "kernels/cpu/infer_cache.cuh", "attend",
        "if (REST)", "if (false)",
        "tests/infer/test_decoder.py::test_heads_of_any_width_look_at_more_than_a_block_of_keys"),
    Bug(
        "heads of queries that share a key are all the same head",
        "kernels/cpu/infer_cache.cuh", "attend_token",
        "qkv + j * E;", "qkv + head * GROUP * E;",
        "tests/infer/test_decoder.py::test_every_position_equals_the_whole_text_computed_anew"),
    Bug(
        "what x had too much of in 4 bits stays",
        "kernels/cpu/infer_int8.cuh", "weights_rows",
        "8.0f :", "7.0f :",
        "tests/infer/test_quantize.py::test_a_plan_equals_the_formula"),
    Bug(
        "all outputs have the first one's scale",
        "kernels/int8_linear.cuh", "real",
        "[o * step]", "[0]",
        "tests/ops/extra/test_int8_linear.py::test_every_rung_equals_numpy"),
    Bug(
        "LAMB's direction has no decay",
        "kernels/lamb.cuh", "direction",
        "+ decay * w", "",
        "tests/optim/test_lamb_kernel.py::test_equals_the_formula"),
    Bug(
        "the last of eight parts is left out",
        "kernels/layer_norm.cu", "layer_norm_add_eight",
        "8; ++k", "7; ++k",
        "tests/ops/test_layer_norm_kernel.py::test_every_rung_equals_the_formula"),
    Bug(
        "an edge of the product forgets the slabs before",
        "kernels/cpu/linear.cu", "product",
        "add ? *at :", "",
        "tests/ops/test_linear_kernel.py::test_product_in_every_layout"),
    Bug(
        "the loss scale on the device falls at the first overflow, whatever the hysteresis",
        "kernels/loss_scale.cu", "loss_scale_update",
        "if (patience <= 0)", "",
        "tests/precision/test_loss_scale.py::test_the_kernel_moves_the_scale_as_its_reference_does"),
    Bug(
        "a tile's edge holds what memory holds",
        "kernels/matmul.cu", "matmul_v2",
        "l0 + y < k && j", "j",
        "tests/ops/test_matmul_kernel.py::test_every_rung_equals_numpy"),
    Bug(
        "the taps of a phase are as far apart as the stride, whatever the dilation",
        "minidl/ops/conv_geometry.py", "phases",
        "tap_step = stride // divisor", "tap_step = stride",
        "tests/ops/test_conv_geometry.py::test_forward_and_by_input_are_the_definition"),
    Bug(
        "a phase of a convolution takes each tap of its kernel",
        "minidl/ops/conv_kernel.py", "by_input",
        "slice(p.tap, None, p.tap_step)", "slice(p.tap, p.tap + p.n_taps)",
        "tests/ops/test_conv_kernel.py::test_every_rung_is_the_formula_forward_and_by_input"),
    Bug(
        "the gradient of the input meets the taps in forward's order",
        "minidl/ops/conv_kernel.py", "by_input",
        "taps[..., ::-1, ::-1]", "taps",
        "tests/ops/test_conv_kernel.py::test_every_rung_is_the_formula_forward_and_by_input"),
    Bug(
        "a phase without a tap forgets the bias",
        "minidl/ops/conv_kernel.py", "by_input",
        "0 if b is None else b[:, None, None]", "0",
        "tests/ops/test_conv_kernel.py::test_by_input_with_a_bias_is_the_transposed_convolution"),
    Bug(
        "all phases write the columns of the first",
        "kernels/conv.cuh", "write",
        "s.tx * q + s.ox", "s.tx * q",
        "tests/ops/test_conv_kernel.py::test_every_rung_is_the_formula_forward_and_by_input"),
    Bug(
        "the taps of an image's right edge read the next row",
        "kernels/conv.cuh", "read",
        "&& w < s.W", "",
        "tests/ops/test_conv_kernel.py::test_every_rung_is_the_formula_forward_and_by_input"),
    Bug(
        "every group of a convolution reads the first one's channels",
        "kernels/conv.cuh", "patch_of",
        "(long long)n * s.G + group", "(long long)n * s.G",
        "tests/ops/test_conv_kernel.py::test_every_rung_is_the_formula_forward_and_by_input"),
    Bug(
        "a group of a convolution takes the bias of another",
        "kernels/conv.cuh", "write",
        "bias[channel]", "bias[m]",
        "tests/ops/test_conv_kernel.py::test_every_rung_is_the_formula_forward_and_by_input"),
    Bug(
        "a tile of a convolution is filled while others read it",
        "kernels/conv.cu", "conv_v2",
        "sum += ws[i][k] * xs[k][j]; __syncthreads();", "sum += ws[i][k] * xs[k][j];",
        "tests/ops/test_conv_kernel.py::test_under_watch"),
    Bug(
        "Winograd's second sum takes the last product with the wrong sign",
        "kernels/conv.cu", "gather_sums",
        "b - c - d", "b - c + d",
        "tests/ops/test_conv_kernel.py::test_every_rung_is_the_formula_forward_and_by_input"),
    Bug(
        "packs of a convolution's pixels are read where they are not aligned",
        "kernels/conv.cu", "conv_v4",
        "&& fx % n == 0", "",
        "tests/ops/test_conv_kernel.py::test_every_rung_is_the_formula_forward_and_by_input"),
    Bug(
        "a share of the pixels begins where the one before does",
        "kernels/conv_weight.cu", "conv_weight_v3",
        "p0 = which * share;", "p0 = 0;",
        "tests/ops/test_conv_kernel.py::test_shares_of_the_pixels_change_with_the_shape_alone_and_add_in_their_order"),
    Bug(
        "lines above an image keep the pixels of another image",
        "kernels/cpu/conv.cu", "",
        "first + i >= 0 && first + i < g.h", "first + i < g.h",
        "tests/ops/test_conv_cpu.py::test_equals_the_columns_in_float64"),
    Bug(
        "the taps of a strided convolution read the columns of another phase",
        "kernels/cpu/conv.cu", "",
        "column % g.step_w * column_phase", "column % g.step_w",
        "tests/ops/test_conv_cpu.py::test_equals_the_columns_in_float64"),
    Bug(
        "a convolution sums its chunks of channels over each other",
        "kernels/cpu/conv.cu", "conv_product",
        "min(PANEL, n_pixels - i * PANEL), c > 0);", "min(PANEL, n_pixels - i * PANEL), false);",
        "tests/ops/test_conv_cpu.py::test_equals_the_columns_in_float64"),
    Bug(
        "the gradient of a convolution's weight forgets all parts but one",
        "minidl/ops/conv_cpu.py", "_sum",
        "np.add.reduce(parts, axis=0, out=gw.reshape(-1))", "gw.reshape(-1)[:] = parts[0]",
        "tests/ops/test_conv_cpu.py::test_equals_the_columns_in_float64"),
    Bug(
        "a row that is cut begins at its first pixel again",
        "kernels/cpu/conv.cu", "fill_panels",
        "lines.left = left + g.step_w * begin;", "lines.left = left;",
        "tests/ops/test_conv_cpu.py::test_equals_the_columns_in_float64"),
    Bug(
        "a depthwise gradient counts the zeros that fill up a vector",
        "kernels/cpu/conv.cu", "conv_few_weight",
        "zero(gradients + rows * lines.pitch, VECS * LANES);", "",
        "tests/ops/test_conv_cpu.py::test_equals_the_columns_in_float64"),
    Bug(
        "Winograd's filters are not turned for the gradient of the input",
        "kernels/cpu/conv_winograd.cu", "winograd_weights",
        "g[turned ? 8 - i : i][d]", "g[i][d]",
        "tests/ops/test_conv_cpu.py::test_equals_the_columns_in_float64"),
    Bug(
        "a number of Winograd's sums has the other sign",
        "kernels/cpu/conv_winograd.cu", "results",
        "r[4 + j] = m1 - m2 - m3;", "r[4 + j] = m1 - m2 + m3;",
        "tests/ops/test_conv_cpu.py::test_equals_the_columns_in_float64"),
    Bug(
        "the last row of an odd image is written past its end",
        "kernels/cpu/conv_winograd.cu", "winograd",
        "if (2 * run->row + 1 < oh) copy", "copy",
        "tests/ops/test_conv_cpu.py::test_equals_the_columns_in_float64"),
    Bug(
        "'highest' does not leave Winograd out",
        "minidl/ops/conv_cpu.py", "by_winograd",
        "(winograd_is_on() and", "(True and",
        "tests/ops/test_conv_cpu.py::"
        "test_winograd_rounds_as_the_plain_form_and_highest_leaves_it_out"),
    Bug(
        "how a convolution's gradient is cut depends on the threads",
        "minidl/ops/conv_cpu.py", "_winograd_parts",
        "_parts_of_gradient(gw_size, n_tiles // (4 * group))", "run.n_threads()",
        "tests/ops/test_conv_cpu.py::test_the_same_bits_with_any_number_of_threads"),
    Bug(
        "a step of the tensor cores' convolution walks to the wrong taps",
        "kernels/conv.cu", "conv_v5",
        "k0 + t / COLUMNS * 16", "k0 + t / COLUMNS * 8",
        "tests/ops/test_conv_kernel.py::test_every_rung_is_the_formula_forward_and_by_input"),
    Bug(
        "a chunk's sum stops an element early",
        "kernels/cpu/grad_norm.cu", "sum_squares_chunks",
        "i < end;", "i + 1 < end;",
        "tests/cuda/test_grad_norm.py::test_norm_of_all_elements"),
    Bug(
        "every array unpacks the beginning of the buffer",
        "kernels/cpu/pack.cu", "unpack_chunks",
        "first[a]", "first[0]",
        "tests/parallel/data/test_flat_kernel.py::test_every_element_goes_to_its_place_and_back"),
    Bug(
        "quantizing truncates",
        "kernels/quantize.cuh", "to_int8",
        "float q = rintf", "float q = truncf",
        "tests/ops/extra/test_quantize.py"
        "::test_equals_the_reference_and_comes_back_within_half_a_scale"),
    Bug(
        "weight decay reads the updated weight",
        "kernels/cpu/sgd.cu", "sgd_chunks",
        "(to_float(g[i]) * unscale + decay * w[i])",
        "to_float(g[i]) * unscale, w[i] -= lr * decay * w[i]",
        "tests/optim/test_sgd_kernel.py::test_equals_the_formula"),
    Bug(
        "the logarithm of softmax takes the sum as it is",
        "kernels/softmax.cuh", "last_of",
        "log(sum)", "sum",
        "tests/ops/test_softmax_kernel.py::test_every_rung_equals_the_formula"),
    Bug(
        "a lane's place counts itself",
        "kernels/topk_mask.cu", "compact_warps",
        "1u << lane", "2u << lane",
        "tests/parallel/data/test_topk_mask.py::test_a_warp_finds_the_same_places"),
    Bug(
        "nan is a finite number",
        "kernels/bad_number.cuh", "bad_number",
        "!(fabsf(x) < INFINITY)", "fabsf(x) == INFINITY",
        "tests/cuda/test_unscale_check.py::test_one_bad_element_anywhere_is_found"),
    Bug(
        "a flag of the compiler counts as the kernel's access",
        "minidl/cuda/checks/hooks.py", "_announce_shared",
        'w + " = {}" * (w == plain)', "w",
        "tests/cuda/checks/test_check_idioms.py::test_shared_halves"),
    Bug(
        "Apple's tool is asked about the library, which holds no lines",
        "minidl/cuda/checks/lines.py", "lines_of",
        "kept if kept.exists() else file", "file",
        "tests/cuda/checks/test_lines.py"
        "::test_on_a_mac_lines_are_copied_beside_the_library_and_read_there"),
    Bug(
        "the outermost loop is told first",
        "minidl/cuda/checks/places.py", "enclosing_loops",
        "list(reversed(found))", "found",
        "tests/cuda/checks/test_places.py::test_loops_around_a_line_innermost_first"),
    Bug(
        "a Chinese character is padded as if its width were one column",
        "minidl/text.py", "width",
        'sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in text)', "len(text)",
        "tests/test_text.py::test_columns_begin_below_each_other_in_chinese"),
    Bug(
        "'high' asks for float32 products",
        "minidl/cuda/device.py", "set_float32_matmul_precision",
        '"COMPUTE_TYPE_TF32" if precision == "high" else "COMPUTE_TYPE_DEFAULT"',
        '"COMPUTE_TYPE_DEFAULT"',
        "tests/cuda/test_device.py::test_tf32_is_a_switch_of_cupys"),
    Bug(
        "a launch on a GPU gets the numbers of the one before",
        "minidl/cuda/gpu.py", "GpuKernel.__call__",
        "self._numbers(args)", "next(iter(self._known), None) or self._numbers(args)",
        "tests/cuda/test_gpu.py::test_each_launch_gets_its_own_numbers"),
    Bug(
        "overlapping arguments are checked as two arrays",
        "minidl/cuda/host/arena.py", "Arena.__init__",
        "[-1].end", "[-1].begin",
        "tests/cuda/checks/test_check.py::test_arrays_that_overlap_stay_one"),
    Bug(
        "a block may be larger than the kernel has promised",
        "minidl/cuda/host/arguments.py", "_head",
        "(b) > most", "(b) > MAX_THREADS",
        "tests/cuda/host/test_arguments.py"
        "::test_a_block_is_no_larger_than_the_kernel_has_promised_the_compiler"),
    Bug(
        "a kernel for any PC leaves the x87 registers in use",
        "minidl/cuda/host/compiler.py", "Compiler.no_mmx",
        '["-mno-mmx"]', "[]",
        "tests/cuda/host/test_compiler.py::test_no_kernel_leaves_the_x87_registers_in_use"),
    Bug(
        "a kernel is cached without its macros",
        "minidl/cuda/host/cpu.py", "_load",
        "sorted(defines.items()), name", "name",
        "tests/cuda/host/test_compiler.py::test_defines_make_different_libraries"),
    Bug(
        "lines after an include are counted one too few",
        "minidl/cuda/host/includes.py", "inline_includes",
        "{number + 1}", "{number}",
        "tests/cuda/host/test_source.py::test_includes_are_put_in_place"),
    Bug(
        "an operator is not among what a kernel can run",
        "minidl/cuda/host/reach.py", "reached",
        "always or d.names", "names",
        "tests/cuda/host/test_reach.py::test_a_barrier_behind_any_name_needs_fibres"),
    Bug(
        "the self-check finds all results equal",
        "minidl/cuda/host/selfcheck.py", "_compare",
        "not wrong.any()", "True",
        "tests/cuda/host/test_selfcheck.py"
        "::test_a_wrong_loop_is_an_error_and_not_a_wrong_number"),
    Bug(
        "the rows of a variable are forgotten",
        "minidl/cuda/host/variables.py", "array",
        "v.rows > 0", "v.rows > 9999",
        "tests/cuda/host/test_words.py::test_variables_are_read_written_and_shared_by_kernels"),
    Bug(
        "the log of another architecture is taken from the cache",
        "minidl/cuda/nvrtc.py", "_key",
        "text, flags, list", "text, list",
        "tests/cuda/test_nvrtc.py::test_the_same_text_is_compiled_once_for_an_architecture"),
    Bug(
        "a warning stops a launch under watch",
        "minidl/cuda/run.py", "Kernel.__call__",
        "if report.errors:", "if report.findings:",
        "tests/cuda/checks/test_check.py::test_rounding_of_float_atomics_is_a_warning"),
    Bug(
        "`minidl kernel run` shows the last launch's bytes alone",
        "minidl/cuda/tool.py", "run",
        "table[name] += t", "table[name] = t",
        "tests/cuda/test_tool.py::test_run_watches_every_launch_of_a_python_file"),
    Bug(
        "add3 sends one input twice its gradient",
        "minidl/ops/add3.py", "Add3.backward",
        "g, g, g", "g, g, g + g",
        "tests/ops/test_add3_kernel.py"),
    Bug(
        "p = 1 keeps what the largest draw keeps",
        "minidl/ops/dropout.py", "limits",
        "0, 0.0", "0, 1.0",
        "tests/ops/test_dropout_kernel.py::test_a_threshold_beyond_every_draw_drops_all"),
    Bug(
        "the last row of an int8 payload is forgotten",
        "minidl/parallel/data/codecs.py", "_parts",
        "if rest:", "if False:",
        "tests/parallel/data/test_codecs.py"
        "::test_payloads_and_what_they_decode_to_are_the_codecs_to_the_bit"),
    Bug(
        "a fused division's slope forgets a sign",
        "minidl/cuda/fuse.py", "OPS",
        "-{g} * {y}", "{g} * {y}",
        "tests/cuda/test_fuse.py::test_a_fused_chain_equals_its_ops"),
    Bug(
        "a step with dropout is captured, and drops the same in every replay",
        "minidl/cuda/cuda_graph.py", "graphed",
        "if used:", "if not used:",
        "tests/cuda/test_cuda_graph.py::test_a_step_that_draws_random_numbers_is_refused", on_stand_in=True),
    Bug(
        "a table is read before another stream has uploaded it",
        "minidl/cuda/launch.py", "on_device",
        "stream.wait_event(copied)", "pass",
        "tests/cuda/test_launches_on_gpu.py::test_a_table_that_one_stream_uploads_another_one_waits_for", on_stand_in=True),
    Bug(
        "a read-only array is written to",
        "minidl/cuda/launch.py", "pointers",
        "np and not a", "not np and not a",
        "tests/cuda/test_launch.py::test_arrays_of_a_table_that_is_written_must_be_writeable"),
    Bug(
        "fp16 gradients are squared in fp16",
        "minidl/cuda/grad_norm.py", "plain_square_sum",
        "astype(backend.accumulate_dtype(a.dtype), copy=False).reshape", "reshape",
        "tests/optim/test_clip.py::test_half_precision_gradients_are_squared_in_single"),
    Bug(
        "random numbers for a GPU are drawn on the host",
        "minidl/cuda/philox.py", "draw_on",
        "random.host_bits if xp is np else bits",
        "lambda *call: xp.asarray(random.host_bits(*call))",
        "tests/cuda/test_philox.py::test_nothing_is_uploaded", on_stand_in=True),
    Bug(
        "a GPU gets more rows than it can count threads for",
        "minidl/cuda/rows.py", "check_size",
        "rows > MAX_ROWS or cols", "cols",
        "tests/cuda/test_rows.py::test_rows_that_a_gpu_cannot_count_are_refused"),
    Bug(
        "a block for each chunk forgets to unscale",
        "kernels/sgd.cu", "sgd_blocks",
        "to_float(g[i]) * unscale", "to_float(g[i])",
        "tests/cuda/test_chunk_rungs.py::test_all_rungs_give_the_same"),
    Bug(
        "attention's rows on a CPU are multiplied without their last element",
        "kernels/cpu/attention_tile.cu", "attention_tile_row_dot",
        "e < E", "e < E - 1",
        "tests/ops/test_attention_kernel.py"),
    Bug(
        "a batch's variance is that inside of its samples",
        "kernels/cpu/batch_norm.cu", "batch_norm_join",
        "+ weight * d * d", "",
        "tests/ops/test_batch_norm_kernel.py::test_every_rung_equals_the_formula"),
    Bug(
        "the last samples of a batch count as a whole part",
        "kernels/cpu/batch_norm.cu", "batch_norm_join",
        "(double)min(size, n - k * size)", "(double)size",
        "tests/ops/test_batch_norm_kernel.py::test_every_rung_equals_the_formula"),
    Bug(
        "batch norm's gradient treats given statistics as if they came from x",
        "kernels/batch_norm.cu", "batch_norm_backward_v2",
        "training ? along / n : ACC(0)", "along / n",
        "tests/ops/test_batch_norm_kernel.py::test_with_the_statistics_given"),
    Bug(
        "the last of equals wins a window",
        "kernels/pool.cu", "max_pool",
        "v > best", "v >= best",
        "tests/ops/test_pool_kernel.py::test_every_rung_equals_the_numpy_form"),
    Bug(
        "padding wins a window of -inf",
        "kernels/cpu/pool.cu", "first_inside",
        "+ min(first_from(left - q * sw, dw), kw - 1)", "",
        "tests/ops/test_pool_kernel.py"
        "::test_max_pooling_equals_pytorch_with_nan_inf_and_equals"),
    Bug(
        "windows that share a row are taken for windows apart",
        "kernels/cpu/pool.cu", "max_pool_backward",
        "sh > (kh - 1) * dh", "sh >= (kh - 1) * dh",
        "tests/ops/test_pool_kernel.py::test_windows_that_share_one_row_add_up"),
    Bug(
        "the gradient of an image's mean is the gradient of its sum",
        "minidl/ops/pool.py", "AdaptiveAvgPool2d.backward",
        "/ gy.dtype.type(n)", "",
        "tests/ops/test_pool_kernel.py::test_the_mean_of_parts_of_an_image_equals_pytorch"),
    Bug(
        "relu makes 0 of what is no number",
        "kernels/relu.cu", "relu_of",
        "to_float(x) < 0 ? from_float<T>(0.0f) : x", "to_float(x) > 0 ? x : from_float<T>(0.0f)",
        "tests/ops/test_relu_kernel.py::test_equals_the_numpy_form"),
]
