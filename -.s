	.file	"c7e74ff172b87589374d554c0759f0d2-stdin.cpp"
	.file	1 "/tmp/wt/exam14" "launchers made by minidl"
	.file	2 "/tmp/wt/exam14" "kernels/host/variables.h"
	.file	3 "/tmp/wt/exam14" "kernels/host/runtime.h"
	.file	4 "/tmp/wt/exam14" "kernels/host/vector_types.h"
	.text
	.globl	minidl_variables                # -- Begin function minidl_variables
	.p2align	4
	.type	minidl_variables,@function
minidl_variables:                       # @minidl_variables
.Lfunc_begin0:
	.loc	2 51 0                          # kernels/host/variables.h:51:0
	.cfi_startproc
# %bb.0:
	pushq	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq	%rsp, %rbp
	.cfi_def_cfa_register %rbp
.Ltmp0:
	.loc	2 51 59 prologue_end            # kernels/host/variables.h:51:59
	movq	_ZZN14MinidlVariable5firstEvE4list(%rip), %rax
	.loc	2 51 52 epilogue_begin is_stmt 0 # kernels/host/variables.h:51:52
	popq	%rbp
	.cfi_def_cfa %rsp, 8
	retq
.Ltmp1:
.Lfunc_end0:
	.size	minidl_variables, .Lfunc_end0-minidl_variables
	.cfi_endproc
                                        # -- End function
	.globl	minidl_launch_0                 # -- Begin function minidl_launch_0
	.p2align	4
	.type	minidl_launch_0,@function
minidl_launch_0:                        # @minidl_launch_0
.Lfunc_begin1:
	.loc	1 6 0 is_stmt 1                 # launchers made by minidl:6:0
	.cfi_startproc
# %bb.0:
	#DEBUG_VALUE: minidl_launch_0:L <- $rdi
	pushq	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq	%rsp, %rbp
	.cfi_def_cfa_register %rbp
.Ltmp2:
	.loc	1 7 10 prologue_end             # launchers made by minidl:7:10
	leaq	_ZL15minidl_thread_0PK12MinidlLaunchRK5uint3S4_(%rip), %rsi
	.loc	1 7 10 epilogue_begin is_stmt 0 # launchers made by minidl:7:10
	popq	%rbp
	.cfi_def_cfa %rsp, 8
.Ltmp3:
	jmp	minidl_run_fibres@PLT           # TAILCALL
.Ltmp4:
.Lfunc_end1:
	.size	minidl_launch_0, .Lfunc_end1-minidl_launch_0
	.cfi_endproc
                                        # -- End function
	.section	.rodata.cst4,"aM",@progbits,4
	.p2align	2, 0x0                          # -- Begin function _ZL15minidl_thread_0PK12MinidlLaunchRK5uint3S4_
.LCPI2_0:
	.long	0x3f800000                      # float 1
	.text
	.p2align	4
	.type	_ZL15minidl_thread_0PK12MinidlLaunchRK5uint3S4_,@function
_ZL15minidl_thread_0PK12MinidlLaunchRK5uint3S4_: # @_ZL15minidl_thread_0PK12MinidlLaunchRK5uint3S4_
.Lfunc_begin2:
	.loc	1 3 0 is_stmt 1                 # launchers made by minidl:3:0
	.cfi_startproc
# %bb.0:
	#DEBUG_VALUE: minidl_thread_0:L <- $rdi
	#DEBUG_VALUE: minidl_thread_0:thread <- $rsi
	pushq	%rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq	%rsp, %rbp
	.cfi_def_cfa_register %rbp
.Ltmp5:
	.loc	1 4 5 prologue_end              # launchers made by minidl:4:5
	movl	(%rsi), %eax
.Ltmp6:
	#DEBUG_VALUE: k:threadIdx <- [DW_OP_LLVM_fragment 0 32] $eax
	#DEBUG_VALUE: k:threadIdx <- [DW_OP_constu 32, DW_OP_shr, DW_OP_LLVM_convert 64 7, DW_OP_LLVM_convert 32 7, DW_OP_stack_value, DW_OP_LLVM_fragment 32 32] $eax
	.loc	1 4 107 is_stmt 0               # launchers made by minidl:4:107
	movq	48(%rdi), %rcx
.Ltmp7:
	#DEBUG_VALUE: k:x <- $rcx
	#DEBUG_VALUE: k:best <- $rcx
	#DEBUG_VALUE: v <- [DW_OP_constu 4, DW_OP_minus, DW_OP_deref] $rbp
	#DEBUG_VALUE: k:out <- undef
	#DEBUG_VALUE: part <- 0
	.loc	1 0 107                         # launchers made by minidl:0:107
	vmovss	(%rcx,%rax,4), %xmm0            # xmm0 = mem[0],zero,zero,zero
	vxorps	%xmm1, %xmm1, %xmm1
.Ltmp8:
	.file	5 "/tmp" "exam14_t.cu"
	.loc	5 4 30                          # exam14_t.cu:4:30 @[ launchers made by minidl:4:3 ]
	vmulss	%xmm1, %xmm0, %xmm1
.Ltmp9:
	#DEBUG_VALUE: v <- $xmm1
	.loc	5 0 30                          # exam14_t.cu:0:30
	vmovss	.LCPI2_0(%rip), %xmm2           # xmm2 = [1.0E+0,0.0E+0,0.0E+0,0.0E+0]
.Ltmp10:
	.loc	5 5 11 is_stmt 1                # exam14_t.cu:5:11 @[ launchers made by minidl:4:3 ]
	vucomiss	%xmm2, %xmm1
.Ltmp11:
	#DEBUG_VALUE: k:best <- undef
	#DEBUG_VALUE: part <- 1
	.loc	5 0 11 is_stmt 0                # exam14_t.cu:0:11
	leaq	-4(%rbp), %rdx
	.loc	5 5 11 is_stmt 1                # exam14_t.cu:5:11 @[ launchers made by minidl:4:3 ]
	cmovaq	%rdx, %rcx
.Ltmp12:
	vucomiss	%xmm2, %xmm0
	cmovaq	%rdx, %rcx
.Ltmp13:
	#DEBUG_VALUE: k:best <- $rcx
	#DEBUG_VALUE: part <- 2
	.loc	1 4 57 is_stmt 0                # launchers made by minidl:4:57
	movq	40(%rdi), %rdx
.Ltmp14:
	#DEBUG_VALUE: k:out <- $rdx
	.loc	5 7 22 is_stmt 1                # exam14_t.cu:7:22 @[ launchers made by minidl:4:3 ]
	vmovss	(%rcx), %xmm0                   # xmm0 = mem[0],zero,zero,zero
	.loc	5 7 20 is_stmt 0                # exam14_t.cu:7:20 @[ launchers made by minidl:4:3 ]
	vmovss	%xmm0, (%rdx,%rax,4)
.Ltmp15:
	.loc	1 5 1 epilogue_begin is_stmt 1  # launchers made by minidl:5:1
	popq	%rbp
	.cfi_def_cfa %rsp, 8
	retq
.Ltmp16:
.Lfunc_end2:
	.size	_ZL15minidl_thread_0PK12MinidlLaunchRK5uint3S4_, .Lfunc_end2-_ZL15minidl_thread_0PK12MinidlLaunchRK5uint3S4_
	.cfi_endproc
                                        # -- End function
	.type	.L.str,@object                  # @.str
	.section	.rodata.str1.1,"aMS",@progbits,1
.L.str:
	.asciz	"{\"k\": {\"number\": 0, \"form\": \"fibre\", \"parameters\": [{\"name\": \"out\", \"text\": \"float* out\", \"kind\": \"pointer\", \"ctype\": \"float\", \"dtype\": \"f4\", \"code\": \"Q\", \"const\": false, \"lanes\": 1}, {\"name\": \"x\", \"text\": \"const float* x\", \"kind\": \"pointer\", \"ctype\": \"float\", \"dtype\": \"f4\", \"code\": \"Q\", \"const\": true, \"lanes\": 1}], \"dynamic_shared\": false, \"shuffles\": false, \"has_copy\": false}}"
	.size	.L.str, 382

	.type	minidl_manifest,@object         # @minidl_manifest
	.data
	.globl	minidl_manifest
	.p2align	3, 0x0
minidl_manifest:
	.quad	.L.str
	.size	minidl_manifest, 8

	.hidden	_ZZN14MinidlVariable5firstEvE4list # @_ZZN14MinidlVariable5firstEvE4list
	.type	_ZZN14MinidlVariable5firstEvE4list,@object
	.section	.bss._ZZN14MinidlVariable5firstEvE4list,"awG",@nobits,_ZZN14MinidlVariable5firstEvE4list,comdat
	.weak	_ZZN14MinidlVariable5firstEvE4list
	.p2align	3, 0x0
_ZZN14MinidlVariable5firstEvE4list:
	.quad	0
	.size	_ZZN14MinidlVariable5firstEvE4list, 8

	.section	.debug_loc,"",@progbits
.Ldebug_loc0:
	.quad	.Ltmp6-.Lfunc_begin0
	.quad	.Lfunc_end2-.Lfunc_begin0
	.short	18                              # Loc expr size
	.byte	80                              # super-register DW_OP_reg0
	.byte	147                             # DW_OP_piece
	.byte	4                               # 4
	.byte	112                             # DW_OP_breg0
	.byte	0                               # 0
	.byte	16                              # DW_OP_constu
	.byte	255                             # 4294967295
	.byte	255                             # 
	.byte	255                             # 
	.byte	255                             # 
	.byte	15                              # 
	.byte	26                              # DW_OP_and
	.byte	16                              # DW_OP_constu
	.byte	32                              # 32
	.byte	37                              # DW_OP_shr
	.byte	159                             # DW_OP_stack_value
	.byte	147                             # DW_OP_piece
	.byte	4                               # 4
	.quad	0
	.quad	0
.Ldebug_loc1:
	.quad	.Ltmp7-.Lfunc_begin0
	.quad	.Ltmp12-.Lfunc_begin0
	.short	1                               # Loc expr size
	.byte	82                              # DW_OP_reg2
	.quad	0
	.quad	0
.Ldebug_loc2:
	.quad	.Ltmp7-.Lfunc_begin0
	.quad	.Ltmp11-.Lfunc_begin0
	.short	1                               # Loc expr size
	.byte	82                              # DW_OP_reg2
	.quad	.Ltmp13-.Lfunc_begin0
	.quad	.Lfunc_end2-.Lfunc_begin0
	.short	1                               # Loc expr size
	.byte	82                              # DW_OP_reg2
	.quad	0
	.quad	0
.Ldebug_loc3:
	.quad	.Ltmp7-.Lfunc_begin0
	.quad	.Ltmp9-.Lfunc_begin0
	.short	2                               # Loc expr size
	.byte	118                             # DW_OP_breg6
	.byte	124                             # -4
	.quad	.Ltmp9-.Lfunc_begin0
	.quad	.Lfunc_end2-.Lfunc_begin0
	.short	1                               # Loc expr size
	.byte	98                              # DW_OP_reg18
	.quad	0
	.quad	0
.Ldebug_loc4:
	.quad	.Ltmp14-.Lfunc_begin0
	.quad	.Lfunc_end2-.Lfunc_begin0
	.short	1                               # Loc expr size
	.byte	81                              # DW_OP_reg1
	.quad	0
	.quad	0
.Ldebug_loc5:
	.quad	.Ltmp7-.Lfunc_begin0
	.quad	.Ltmp11-.Lfunc_begin0
	.short	3                               # Loc expr size
	.byte	17                              # DW_OP_consts
	.byte	0                               # 0
	.byte	159                             # DW_OP_stack_value
	.quad	.Ltmp11-.Lfunc_begin0
	.quad	.Ltmp13-.Lfunc_begin0
	.short	3                               # Loc expr size
	.byte	17                              # DW_OP_consts
	.byte	1                               # 1
	.byte	159                             # DW_OP_stack_value
	.quad	.Ltmp13-.Lfunc_begin0
	.quad	.Lfunc_end2-.Lfunc_begin0
	.short	3                               # Loc expr size
	.byte	17                              # DW_OP_consts
	.byte	2                               # 2
	.byte	159                             # DW_OP_stack_value
	.quad	0
	.quad	0
	.section	.debug_abbrev,"",@progbits
	.byte	1                               # Abbreviation Code
	.byte	17                              # DW_TAG_compile_unit
	.byte	1                               # DW_CHILDREN_yes
	.byte	37                              # DW_AT_producer
	.byte	14                              # DW_FORM_strp
	.byte	19                              # DW_AT_language
	.byte	5                               # DW_FORM_data2
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	16                              # DW_AT_stmt_list
	.byte	23                              # DW_FORM_sec_offset
	.byte	27                              # DW_AT_comp_dir
	.byte	14                              # DW_FORM_strp
	.byte	17                              # DW_AT_low_pc
	.byte	1                               # DW_FORM_addr
	.byte	18                              # DW_AT_high_pc
	.byte	6                               # DW_FORM_data4
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	2                               # Abbreviation Code
	.byte	52                              # DW_TAG_variable
	.byte	0                               # DW_CHILDREN_no
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	2                               # DW_AT_location
	.byte	24                              # DW_FORM_exprloc
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	3                               # Abbreviation Code
	.byte	1                               # DW_TAG_array_type
	.byte	1                               # DW_CHILDREN_yes
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	4                               # Abbreviation Code
	.byte	33                              # DW_TAG_subrange_type
	.byte	0                               # DW_CHILDREN_no
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	55                              # DW_AT_count
	.byte	5                               # DW_FORM_data2
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	5                               # Abbreviation Code
	.byte	38                              # DW_TAG_const_type
	.byte	0                               # DW_CHILDREN_no
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	6                               # Abbreviation Code
	.byte	36                              # DW_TAG_base_type
	.byte	0                               # DW_CHILDREN_no
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	62                              # DW_AT_encoding
	.byte	11                              # DW_FORM_data1
	.byte	11                              # DW_AT_byte_size
	.byte	11                              # DW_FORM_data1
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	7                               # Abbreviation Code
	.byte	36                              # DW_TAG_base_type
	.byte	0                               # DW_CHILDREN_no
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	11                              # DW_AT_byte_size
	.byte	11                              # DW_FORM_data1
	.byte	62                              # DW_AT_encoding
	.byte	11                              # DW_FORM_data1
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	8                               # Abbreviation Code
	.byte	52                              # DW_TAG_variable
	.byte	0                               # DW_CHILDREN_no
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	63                              # DW_AT_external
	.byte	25                              # DW_FORM_flag_present
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	2                               # DW_AT_location
	.byte	24                              # DW_FORM_exprloc
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	9                               # Abbreviation Code
	.byte	15                              # DW_TAG_pointer_type
	.byte	0                               # DW_CHILDREN_no
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	10                              # Abbreviation Code
	.byte	19                              # DW_TAG_structure_type
	.byte	1                               # DW_CHILDREN_yes
	.byte	54                              # DW_AT_calling_convention
	.byte	11                              # DW_FORM_data1
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	11                              # DW_AT_byte_size
	.byte	11                              # DW_FORM_data1
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	11                              # Abbreviation Code
	.byte	13                              # DW_TAG_member
	.byte	0                               # DW_CHILDREN_no
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	56                              # DW_AT_data_member_location
	.byte	11                              # DW_FORM_data1
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	12                              # Abbreviation Code
	.byte	46                              # DW_TAG_subprogram
	.byte	0                               # DW_CHILDREN_no
	.byte	110                             # DW_AT_linkage_name
	.byte	14                              # DW_FORM_strp
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	60                              # DW_AT_declaration
	.byte	25                              # DW_FORM_flag_present
	.byte	63                              # DW_AT_external
	.byte	25                              # DW_FORM_flag_present
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	13                              # Abbreviation Code
	.byte	16                              # DW_TAG_reference_type
	.byte	0                               # DW_CHILDREN_no
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	14                              # Abbreviation Code
	.byte	46                              # DW_TAG_subprogram
	.byte	1                               # DW_CHILDREN_yes
	.byte	71                              # DW_AT_specification
	.byte	19                              # DW_FORM_ref4
	.byte	32                              # DW_AT_inline
	.byte	11                              # DW_FORM_data1
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	15                              # Abbreviation Code
	.byte	46                              # DW_TAG_subprogram
	.byte	1                               # DW_CHILDREN_yes
	.byte	110                             # DW_AT_linkage_name
	.byte	14                              # DW_FORM_strp
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	60                              # DW_AT_declaration
	.byte	25                              # DW_FORM_flag_present
	.byte	63                              # DW_AT_external
	.byte	25                              # DW_FORM_flag_present
	.byte	99                              # DW_AT_explicit
	.byte	25                              # DW_FORM_flag_present
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	16                              # Abbreviation Code
	.byte	5                               # DW_TAG_formal_parameter
	.byte	0                               # DW_CHILDREN_no
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	52                              # DW_AT_artificial
	.byte	25                              # DW_FORM_flag_present
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	17                              # Abbreviation Code
	.byte	5                               # DW_TAG_formal_parameter
	.byte	0                               # DW_CHILDREN_no
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	18                              # Abbreviation Code
	.byte	15                              # DW_TAG_pointer_type
	.byte	0                               # DW_CHILDREN_no
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	19                              # Abbreviation Code
	.byte	46                              # DW_TAG_subprogram
	.byte	1                               # DW_CHILDREN_yes
	.byte	110                             # DW_AT_linkage_name
	.byte	14                              # DW_FORM_strp
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	60                              # DW_AT_declaration
	.byte	25                              # DW_FORM_flag_present
	.byte	63                              # DW_AT_external
	.byte	25                              # DW_FORM_flag_present
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	20                              # Abbreviation Code
	.byte	46                              # DW_TAG_subprogram
	.byte	1                               # DW_CHILDREN_yes
	.byte	110                             # DW_AT_linkage_name
	.byte	14                              # DW_FORM_strp
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	60                              # DW_AT_declaration
	.byte	25                              # DW_FORM_flag_present
	.byte	63                              # DW_AT_external
	.byte	25                              # DW_FORM_flag_present
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	21                              # Abbreviation Code
	.byte	46                              # DW_TAG_subprogram
	.byte	0                               # DW_CHILDREN_no
	.byte	17                              # DW_AT_low_pc
	.byte	1                               # DW_FORM_addr
	.byte	18                              # DW_AT_high_pc
	.byte	6                               # DW_FORM_data4
	.byte	64                              # DW_AT_frame_base
	.byte	24                              # DW_FORM_exprloc
	.ascii	"\227B"                         # DW_AT_GNU_all_call_sites
	.byte	25                              # DW_FORM_flag_present
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	63                              # DW_AT_external
	.byte	25                              # DW_FORM_flag_present
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	22                              # Abbreviation Code
	.byte	46                              # DW_TAG_subprogram
	.byte	1                               # DW_CHILDREN_yes
	.byte	17                              # DW_AT_low_pc
	.byte	1                               # DW_FORM_addr
	.byte	18                              # DW_AT_high_pc
	.byte	6                               # DW_FORM_data4
	.byte	64                              # DW_AT_frame_base
	.byte	24                              # DW_FORM_exprloc
	.ascii	"\227B"                         # DW_AT_GNU_all_call_sites
	.byte	25                              # DW_FORM_flag_present
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	63                              # DW_AT_external
	.byte	25                              # DW_FORM_flag_present
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	23                              # Abbreviation Code
	.byte	5                               # DW_TAG_formal_parameter
	.byte	0                               # DW_CHILDREN_no
	.byte	2                               # DW_AT_location
	.byte	24                              # DW_FORM_exprloc
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	24                              # Abbreviation Code
	.ascii	"\211\202\001"                  # DW_TAG_GNU_call_site
	.byte	1                               # DW_CHILDREN_yes
	.byte	49                              # DW_AT_abstract_origin
	.byte	19                              # DW_FORM_ref4
	.ascii	"\225B"                         # DW_AT_GNU_tail_call
	.byte	25                              # DW_FORM_flag_present
	.byte	17                              # DW_AT_low_pc
	.byte	1                               # DW_FORM_addr
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	25                              # Abbreviation Code
	.ascii	"\212\202\001"                  # DW_TAG_GNU_call_site_parameter
	.byte	0                               # DW_CHILDREN_no
	.byte	2                               # DW_AT_location
	.byte	24                              # DW_FORM_exprloc
	.ascii	"\221B"                         # DW_AT_GNU_call_site_value
	.byte	24                              # DW_FORM_exprloc
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	26                              # Abbreviation Code
	.byte	46                              # DW_TAG_subprogram
	.byte	1                               # DW_CHILDREN_yes
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	60                              # DW_AT_declaration
	.byte	25                              # DW_FORM_flag_present
	.byte	63                              # DW_AT_external
	.byte	25                              # DW_FORM_flag_present
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	27                              # Abbreviation Code
	.byte	33                              # DW_TAG_subrange_type
	.byte	0                               # DW_CHILDREN_no
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	55                              # DW_AT_count
	.byte	11                              # DW_FORM_data1
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	28                              # Abbreviation Code
	.byte	22                              # DW_TAG_typedef
	.byte	0                               # DW_CHILDREN_no
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	29                              # Abbreviation Code
	.byte	21                              # DW_TAG_subroutine_type
	.byte	1                               # DW_CHILDREN_yes
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	30                              # Abbreviation Code
	.byte	46                              # DW_TAG_subprogram
	.byte	1                               # DW_CHILDREN_yes
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	63                              # DW_AT_external
	.byte	25                              # DW_FORM_flag_present
	.byte	32                              # DW_AT_inline
	.byte	11                              # DW_FORM_data1
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	31                              # Abbreviation Code
	.byte	5                               # DW_TAG_formal_parameter
	.byte	0                               # DW_CHILDREN_no
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	32                              # Abbreviation Code
	.byte	52                              # DW_TAG_variable
	.byte	0                               # DW_CHILDREN_no
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	73                              # DW_AT_type
	.byte	19                              # DW_FORM_ref4
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	33                              # Abbreviation Code
	.byte	11                              # DW_TAG_lexical_block
	.byte	1                               # DW_CHILDREN_yes
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	34                              # Abbreviation Code
	.byte	46                              # DW_TAG_subprogram
	.byte	1                               # DW_CHILDREN_yes
	.byte	17                              # DW_AT_low_pc
	.byte	1                               # DW_FORM_addr
	.byte	18                              # DW_AT_high_pc
	.byte	6                               # DW_FORM_data4
	.byte	64                              # DW_AT_frame_base
	.byte	24                              # DW_FORM_exprloc
	.ascii	"\227B"                         # DW_AT_GNU_all_call_sites
	.byte	25                              # DW_FORM_flag_present
	.byte	110                             # DW_AT_linkage_name
	.byte	14                              # DW_FORM_strp
	.byte	3                               # DW_AT_name
	.byte	14                              # DW_FORM_strp
	.byte	58                              # DW_AT_decl_file
	.byte	11                              # DW_FORM_data1
	.byte	59                              # DW_AT_decl_line
	.byte	11                              # DW_FORM_data1
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	35                              # Abbreviation Code
	.byte	29                              # DW_TAG_inlined_subroutine
	.byte	1                               # DW_CHILDREN_yes
	.byte	49                              # DW_AT_abstract_origin
	.byte	19                              # DW_FORM_ref4
	.byte	85                              # DW_AT_ranges
	.byte	23                              # DW_FORM_sec_offset
	.byte	88                              # DW_AT_call_file
	.byte	11                              # DW_FORM_data1
	.byte	89                              # DW_AT_call_line
	.byte	11                              # DW_FORM_data1
	.byte	87                              # DW_AT_call_column
	.byte	11                              # DW_FORM_data1
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	36                              # Abbreviation Code
	.byte	5                               # DW_TAG_formal_parameter
	.byte	0                               # DW_CHILDREN_no
	.byte	2                               # DW_AT_location
	.byte	23                              # DW_FORM_sec_offset
	.byte	49                              # DW_AT_abstract_origin
	.byte	19                              # DW_FORM_ref4
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	37                              # Abbreviation Code
	.byte	52                              # DW_TAG_variable
	.byte	0                               # DW_CHILDREN_no
	.byte	2                               # DW_AT_location
	.byte	23                              # DW_FORM_sec_offset
	.byte	49                              # DW_AT_abstract_origin
	.byte	19                              # DW_FORM_ref4
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	38                              # Abbreviation Code
	.byte	11                              # DW_TAG_lexical_block
	.byte	1                               # DW_CHILDREN_yes
	.byte	17                              # DW_AT_low_pc
	.byte	1                               # DW_FORM_addr
	.byte	18                              # DW_AT_high_pc
	.byte	6                               # DW_FORM_data4
	.byte	49                              # DW_AT_abstract_origin
	.byte	19                              # DW_FORM_ref4
	.byte	0                               # EOM(1)
	.byte	0                               # EOM(2)
	.byte	0                               # EOM(3)
	.section	.debug_info,"",@progbits
.Lcu_begin0:
	.long	.Ldebug_info_end0-.Ldebug_info_start0 # Length of Unit
.Ldebug_info_start0:
	.short	4                               # DWARF version number
	.long	.debug_abbrev                   # Offset Into Abbrev. Section
	.byte	8                               # Address Size (in bytes)
	.byte	1                               # Abbrev [1] 0xb:0x45a DW_TAG_compile_unit
	.long	.Linfo_string0                  # DW_AT_producer
	.short	33                              # DW_AT_language
	.long	.Linfo_string1                  # DW_AT_name
	.long	.Lline_table_start0             # DW_AT_stmt_list
	.long	.Linfo_string2                  # DW_AT_comp_dir
	.quad	.Lfunc_begin0                   # DW_AT_low_pc
	.long	.Lfunc_end2-.Lfunc_begin0       # DW_AT_high_pc
	.byte	2                               # Abbrev [2] 0x2a:0x11 DW_TAG_variable
	.long	59                              # DW_AT_type
	.byte	1                               # DW_AT_decl_file
	.byte	11                              # DW_AT_decl_line
	.byte	9                               # DW_AT_location
	.byte	3
	.quad	.L.str
	.byte	3                               # Abbrev [3] 0x3b:0xd DW_TAG_array_type
	.long	72                              # DW_AT_type
	.byte	4                               # Abbrev [4] 0x40:0x7 DW_TAG_subrange_type
	.long	84                              # DW_AT_type
	.short	382                             # DW_AT_count
	.byte	0                               # End Of Children Mark
	.byte	5                               # Abbrev [5] 0x48:0x5 DW_TAG_const_type
	.long	77                              # DW_AT_type
	.byte	6                               # Abbrev [6] 0x4d:0x7 DW_TAG_base_type
	.long	.Linfo_string3                  # DW_AT_name
	.byte	6                               # DW_AT_encoding
	.byte	1                               # DW_AT_byte_size
	.byte	7                               # Abbrev [7] 0x54:0x7 DW_TAG_base_type
	.long	.Linfo_string4                  # DW_AT_name
	.byte	8                               # DW_AT_byte_size
	.byte	7                               # DW_AT_encoding
	.byte	8                               # Abbrev [8] 0x5b:0x15 DW_TAG_variable
	.long	.Linfo_string5                  # DW_AT_name
	.long	112                             # DW_AT_type
                                        # DW_AT_external
	.byte	1                               # DW_AT_decl_file
	.byte	11                              # DW_AT_decl_line
	.byte	9                               # DW_AT_location
	.byte	3
	.quad	minidl_manifest
	.byte	9                               # Abbrev [9] 0x70:0x5 DW_TAG_pointer_type
	.long	72                              # DW_AT_type
	.byte	10                              # Abbrev [10] 0x75:0x85 DW_TAG_structure_type
	.byte	5                               # DW_AT_calling_convention
	.long	.Linfo_string19                 # DW_AT_name
	.byte	56                              # DW_AT_byte_size
	.byte	2                               # DW_AT_decl_file
	.byte	31                              # DW_AT_decl_line
	.byte	11                              # Abbrev [11] 0x7e:0xc DW_TAG_member
	.long	.Linfo_string6                  # DW_AT_name
	.long	250                             # DW_AT_type
	.byte	2                               # DW_AT_decl_file
	.byte	32                              # DW_AT_decl_line
	.byte	0                               # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0x8a:0xc DW_TAG_member
	.long	.Linfo_string8                  # DW_AT_name
	.long	250                             # DW_AT_type
	.byte	2                               # DW_AT_decl_file
	.byte	32                              # DW_AT_decl_line
	.byte	8                               # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0x96:0xc DW_TAG_member
	.long	.Linfo_string9                  # DW_AT_name
	.long	112                             # DW_AT_type
	.byte	2                               # DW_AT_decl_file
	.byte	33                              # DW_AT_decl_line
	.byte	16                              # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0xa2:0xc DW_TAG_member
	.long	.Linfo_string10                 # DW_AT_name
	.long	257                             # DW_AT_type
	.byte	2                               # DW_AT_decl_file
	.byte	34                              # DW_AT_decl_line
	.byte	24                              # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0xae:0xc DW_TAG_member
	.long	.Linfo_string12                 # DW_AT_name
	.long	257                             # DW_AT_type
	.byte	2                               # DW_AT_decl_file
	.byte	34                              # DW_AT_decl_line
	.byte	28                              # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0xba:0xc DW_TAG_member
	.long	.Linfo_string13                 # DW_AT_name
	.long	257                             # DW_AT_type
	.byte	2                               # DW_AT_decl_file
	.byte	34                              # DW_AT_decl_line
	.byte	32                              # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0xc6:0xc DW_TAG_member
	.long	.Linfo_string14                 # DW_AT_name
	.long	257                             # DW_AT_type
	.byte	2                               # DW_AT_decl_file
	.byte	34                              # DW_AT_decl_line
	.byte	36                              # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0xd2:0xc DW_TAG_member
	.long	.Linfo_string15                 # DW_AT_name
	.long	112                             # DW_AT_type
	.byte	2                               # DW_AT_decl_file
	.byte	35                              # DW_AT_decl_line
	.byte	40                              # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0xde:0xc DW_TAG_member
	.long	.Linfo_string16                 # DW_AT_name
	.long	264                             # DW_AT_type
	.byte	2                               # DW_AT_decl_file
	.byte	36                              # DW_AT_decl_line
	.byte	48                              # DW_AT_data_member_location
	.byte	12                              # Abbrev [12] 0xea:0xf DW_TAG_subprogram
	.long	.Linfo_string17                 # DW_AT_linkage_name
	.long	.Linfo_string18                 # DW_AT_name
	.byte	2                               # DW_AT_decl_file
	.byte	37                              # DW_AT_decl_line
	.long	269                             # DW_AT_type
                                        # DW_AT_declaration
                                        # DW_AT_external
	.byte	0                               # End Of Children Mark
	.byte	6                               # Abbrev [6] 0xfa:0x7 DW_TAG_base_type
	.long	.Linfo_string7                  # DW_AT_name
	.byte	7                               # DW_AT_encoding
	.byte	8                               # DW_AT_byte_size
	.byte	6                               # Abbrev [6] 0x101:0x7 DW_TAG_base_type
	.long	.Linfo_string11                 # DW_AT_name
	.byte	5                               # DW_AT_encoding
	.byte	4                               # DW_AT_byte_size
	.byte	9                               # Abbrev [9] 0x108:0x5 DW_TAG_pointer_type
	.long	117                             # DW_AT_type
	.byte	13                              # Abbrev [13] 0x10d:0x5 DW_TAG_reference_type
	.long	264                             # DW_AT_type
	.byte	14                              # Abbrev [14] 0x112:0x1c DW_TAG_subprogram
	.long	234                             # DW_AT_specification
	.byte	1                               # DW_AT_inline
	.byte	8                               # Abbrev [8] 0x118:0x15 DW_TAG_variable
	.long	.Linfo_string20                 # DW_AT_name
	.long	264                             # DW_AT_type
                                        # DW_AT_external
	.byte	2                               # DW_AT_decl_file
	.byte	38                              # DW_AT_decl_line
	.byte	9                               # DW_AT_location
	.byte	3
	.quad	_ZZN14MinidlVariable5firstEvE4list
	.byte	0                               # End Of Children Mark
	.byte	10                              # Abbrev [10] 0x12e:0x2c DW_TAG_structure_type
	.byte	5                               # DW_AT_calling_convention
	.long	.Linfo_string23                 # DW_AT_name
	.byte	8                               # DW_AT_byte_size
	.byte	3                               # DW_AT_decl_file
	.byte	70                              # DW_AT_decl_line
	.byte	11                              # Abbrev [11] 0x137:0xc DW_TAG_member
	.long	.Linfo_string21                 # DW_AT_name
	.long	346                             # DW_AT_type
	.byte	3                               # DW_AT_decl_file
	.byte	71                              # DW_AT_decl_line
	.byte	0                               # DW_AT_data_member_location
	.byte	15                              # Abbrev [15] 0x143:0x16 DW_TAG_subprogram
	.long	.Linfo_string22                 # DW_AT_linkage_name
	.long	.Linfo_string23                 # DW_AT_name
	.byte	3                               # DW_AT_decl_file
	.byte	72                              # DW_AT_decl_line
                                        # DW_AT_declaration
                                        # DW_AT_external
                                        # DW_AT_explicit
	.byte	16                              # Abbrev [16] 0x14e:0x5 DW_TAG_formal_parameter
	.long	347                             # DW_AT_type
                                        # DW_AT_artificial
	.byte	17                              # Abbrev [17] 0x153:0x5 DW_TAG_formal_parameter
	.long	346                             # DW_AT_type
	.byte	0                               # End Of Children Mark
	.byte	0                               # End Of Children Mark
	.byte	18                              # Abbrev [18] 0x15a:0x1 DW_TAG_pointer_type
	.byte	9                               # Abbrev [9] 0x15b:0x5 DW_TAG_pointer_type
	.long	302                             # DW_AT_type
	.byte	9                               # Abbrev [9] 0x160:0x5 DW_TAG_pointer_type
	.long	357                             # DW_AT_type
	.byte	5                               # Abbrev [5] 0x165:0x5 DW_TAG_const_type
	.long	346                             # DW_AT_type
	.byte	9                               # Abbrev [9] 0x16a:0x5 DW_TAG_pointer_type
	.long	367                             # DW_AT_type
	.byte	6                               # Abbrev [6] 0x16f:0x7 DW_TAG_base_type
	.long	.Linfo_string24                 # DW_AT_name
	.byte	4                               # DW_AT_encoding
	.byte	4                               # DW_AT_byte_size
	.byte	9                               # Abbrev [9] 0x176:0x5 DW_TAG_pointer_type
	.long	379                             # DW_AT_type
	.byte	5                               # Abbrev [5] 0x17b:0x5 DW_TAG_const_type
	.long	367                             # DW_AT_type
	.byte	10                              # Abbrev [10] 0x180:0x79 DW_TAG_structure_type
	.byte	5                               # DW_AT_calling_convention
	.long	.Linfo_string30                 # DW_AT_name
	.byte	12                              # DW_AT_byte_size
	.byte	4                               # DW_AT_decl_file
	.byte	38                              # DW_AT_decl_line
	.byte	11                              # Abbrev [11] 0x189:0xc DW_TAG_member
	.long	.Linfo_string25                 # DW_AT_name
	.long	505                             # DW_AT_type
	.byte	4                               # DW_AT_decl_file
	.byte	39                              # DW_AT_decl_line
	.byte	0                               # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0x195:0xc DW_TAG_member
	.long	.Linfo_string27                 # DW_AT_name
	.long	505                             # DW_AT_type
	.byte	4                               # DW_AT_decl_file
	.byte	39                              # DW_AT_decl_line
	.byte	4                               # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0x1a1:0xc DW_TAG_member
	.long	.Linfo_string28                 # DW_AT_name
	.long	505                             # DW_AT_type
	.byte	4                               # DW_AT_decl_file
	.byte	39                              # DW_AT_decl_line
	.byte	8                               # DW_AT_data_member_location
	.byte	19                              # Abbrev [19] 0x1ad:0x20 DW_TAG_subprogram
	.long	.Linfo_string29                 # DW_AT_linkage_name
	.long	.Linfo_string30                 # DW_AT_name
	.byte	4                               # DW_AT_decl_file
	.byte	40                              # DW_AT_decl_line
                                        # DW_AT_declaration
                                        # DW_AT_external
	.byte	16                              # Abbrev [16] 0x1b8:0x5 DW_TAG_formal_parameter
	.long	512                             # DW_AT_type
                                        # DW_AT_artificial
	.byte	17                              # Abbrev [17] 0x1bd:0x5 DW_TAG_formal_parameter
	.long	505                             # DW_AT_type
	.byte	17                              # Abbrev [17] 0x1c2:0x5 DW_TAG_formal_parameter
	.long	505                             # DW_AT_type
	.byte	17                              # Abbrev [17] 0x1c7:0x5 DW_TAG_formal_parameter
	.long	505                             # DW_AT_type
	.byte	0                               # End Of Children Mark
	.byte	19                              # Abbrev [19] 0x1cd:0x16 DW_TAG_subprogram
	.long	.Linfo_string31                 # DW_AT_linkage_name
	.long	.Linfo_string30                 # DW_AT_name
	.byte	4                               # DW_AT_decl_file
	.byte	41                              # DW_AT_decl_line
                                        # DW_AT_declaration
                                        # DW_AT_external
	.byte	16                              # Abbrev [16] 0x1d8:0x5 DW_TAG_formal_parameter
	.long	512                             # DW_AT_type
                                        # DW_AT_artificial
	.byte	17                              # Abbrev [17] 0x1dd:0x5 DW_TAG_formal_parameter
	.long	517                             # DW_AT_type
	.byte	0                               # End Of Children Mark
	.byte	20                              # Abbrev [20] 0x1e3:0x15 DW_TAG_subprogram
	.long	.Linfo_string33                 # DW_AT_linkage_name
	.long	.Linfo_string34                 # DW_AT_name
	.byte	4                               # DW_AT_decl_file
	.byte	42                              # DW_AT_decl_line
	.long	517                             # DW_AT_type
                                        # DW_AT_declaration
                                        # DW_AT_external
	.byte	16                              # Abbrev [16] 0x1f2:0x5 DW_TAG_formal_parameter
	.long	563                             # DW_AT_type
                                        # DW_AT_artificial
	.byte	0                               # End Of Children Mark
	.byte	0                               # End Of Children Mark
	.byte	6                               # Abbrev [6] 0x1f9:0x7 DW_TAG_base_type
	.long	.Linfo_string26                 # DW_AT_name
	.byte	7                               # DW_AT_encoding
	.byte	4                               # DW_AT_byte_size
	.byte	9                               # Abbrev [9] 0x200:0x5 DW_TAG_pointer_type
	.long	384                             # DW_AT_type
	.byte	10                              # Abbrev [10] 0x205:0x2e DW_TAG_structure_type
	.byte	5                               # DW_AT_calling_convention
	.long	.Linfo_string32                 # DW_AT_name
	.byte	12                              # DW_AT_byte_size
	.byte	4                               # DW_AT_decl_file
	.byte	30                              # DW_AT_decl_line
	.byte	11                              # Abbrev [11] 0x20e:0xc DW_TAG_member
	.long	.Linfo_string25                 # DW_AT_name
	.long	505                             # DW_AT_type
	.byte	4                               # DW_AT_decl_file
	.byte	30                              # DW_AT_decl_line
	.byte	0                               # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0x21a:0xc DW_TAG_member
	.long	.Linfo_string27                 # DW_AT_name
	.long	505                             # DW_AT_type
	.byte	4                               # DW_AT_decl_file
	.byte	30                              # DW_AT_decl_line
	.byte	4                               # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0x226:0xc DW_TAG_member
	.long	.Linfo_string28                 # DW_AT_name
	.long	505                             # DW_AT_type
	.byte	4                               # DW_AT_decl_file
	.byte	30                              # DW_AT_decl_line
	.byte	8                               # DW_AT_data_member_location
	.byte	0                               # End Of Children Mark
	.byte	9                               # Abbrev [9] 0x233:0x5 DW_TAG_pointer_type
	.long	568                             # DW_AT_type
	.byte	5                               # Abbrev [5] 0x238:0x5 DW_TAG_const_type
	.long	384                             # DW_AT_type
	.byte	21                              # Abbrev [21] 0x23d:0x19 DW_TAG_subprogram
	.quad	.Lfunc_begin0                   # DW_AT_low_pc
	.long	.Lfunc_end0-.Lfunc_begin0       # DW_AT_high_pc
	.byte	1                               # DW_AT_frame_base
	.byte	86
                                        # DW_AT_GNU_all_call_sites
	.long	.Linfo_string54                 # DW_AT_name
	.byte	2                               # DW_AT_decl_file
	.byte	51                              # DW_AT_decl_line
	.long	264                             # DW_AT_type
                                        # DW_AT_external
	.byte	22                              # Abbrev [22] 0x256:0x3c DW_TAG_subprogram
	.quad	.Lfunc_begin1                   # DW_AT_low_pc
	.long	.Lfunc_end1-.Lfunc_begin1       # DW_AT_high_pc
	.byte	1                               # DW_AT_frame_base
	.byte	86
                                        # DW_AT_GNU_all_call_sites
	.long	.Linfo_string55                 # DW_AT_name
	.byte	1                               # DW_AT_decl_file
	.byte	6                               # DW_AT_decl_line
	.long	257                             # DW_AT_type
                                        # DW_AT_external
	.byte	23                              # Abbrev [23] 0x26f:0xd DW_TAG_formal_parameter
	.byte	1                               # DW_AT_location
	.byte	85
	.long	.Linfo_string58                 # DW_AT_name
	.byte	1                               # DW_AT_decl_file
	.byte	6                               # DW_AT_decl_line
	.long	680                             # DW_AT_type
	.byte	24                              # Abbrev [24] 0x27c:0x15 DW_TAG_GNU_call_site
	.long	658                             # DW_AT_abstract_origin
                                        # DW_AT_GNU_tail_call
	.quad	.Ltmp4                          # DW_AT_low_pc
	.byte	25                              # Abbrev [25] 0x289:0x7 DW_TAG_GNU_call_site_parameter
	.byte	1                               # DW_AT_location
	.byte	85
	.byte	3                               # DW_AT_GNU_call_site_value
	.byte	243
	.byte	1
	.byte	85
	.byte	0                               # End Of Children Mark
	.byte	0                               # End Of Children Mark
	.byte	26                              # Abbrev [26] 0x292:0x16 DW_TAG_subprogram
	.long	.Linfo_string35                 # DW_AT_name
	.byte	3                               # DW_AT_decl_file
	.byte	25                              # DW_AT_decl_line
	.long	257                             # DW_AT_type
                                        # DW_AT_declaration
                                        # DW_AT_external
	.byte	17                              # Abbrev [17] 0x29d:0x5 DW_TAG_formal_parameter
	.long	680                             # DW_AT_type
	.byte	17                              # Abbrev [17] 0x2a2:0x5 DW_TAG_formal_parameter
	.long	803                             # DW_AT_type
	.byte	0                               # End Of Children Mark
	.byte	9                               # Abbrev [9] 0x2a8:0x5 DW_TAG_pointer_type
	.long	685                             # DW_AT_type
	.byte	5                               # Abbrev [5] 0x2ad:0x5 DW_TAG_const_type
	.long	690                             # DW_AT_type
	.byte	10                              # Abbrev [10] 0x2b2:0x52 DW_TAG_structure_type
	.byte	5                               # DW_AT_calling_convention
	.long	.Linfo_string43                 # DW_AT_name
	.byte	48                              # DW_AT_byte_size
	.byte	3                               # DW_AT_decl_file
	.byte	7                               # DW_AT_decl_line
	.byte	11                              # Abbrev [11] 0x2bb:0xc DW_TAG_member
	.long	.Linfo_string36                 # DW_AT_name
	.long	772                             # DW_AT_type
	.byte	3                               # DW_AT_decl_file
	.byte	8                               # DW_AT_decl_line
	.byte	0                               # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0x2c7:0xc DW_TAG_member
	.long	.Linfo_string37                 # DW_AT_name
	.long	772                             # DW_AT_type
	.byte	3                               # DW_AT_decl_file
	.byte	8                               # DW_AT_decl_line
	.byte	12                              # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0x2d3:0xc DW_TAG_member
	.long	.Linfo_string38                 # DW_AT_name
	.long	250                             # DW_AT_type
	.byte	3                               # DW_AT_decl_file
	.byte	9                               # DW_AT_decl_line
	.byte	24                              # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0x2df:0xc DW_TAG_member
	.long	.Linfo_string39                 # DW_AT_name
	.long	257                             # DW_AT_type
	.byte	3                               # DW_AT_decl_file
	.byte	11                              # DW_AT_decl_line
	.byte	32                              # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0x2eb:0xc DW_TAG_member
	.long	.Linfo_string40                 # DW_AT_name
	.long	257                             # DW_AT_type
	.byte	3                               # DW_AT_decl_file
	.byte	12                              # DW_AT_decl_line
	.byte	36                              # DW_AT_data_member_location
	.byte	11                              # Abbrev [11] 0x2f7:0xc DW_TAG_member
	.long	.Linfo_string41                 # DW_AT_name
	.long	784                             # DW_AT_type
	.byte	3                               # DW_AT_decl_file
	.byte	13                              # DW_AT_decl_line
	.byte	40                              # DW_AT_data_member_location
	.byte	0                               # End Of Children Mark
	.byte	3                               # Abbrev [3] 0x304:0xc DW_TAG_array_type
	.long	505                             # DW_AT_type
	.byte	27                              # Abbrev [27] 0x309:0x6 DW_TAG_subrange_type
	.long	84                              # DW_AT_type
	.byte	3                               # DW_AT_count
	.byte	0                               # End Of Children Mark
	.byte	3                               # Abbrev [3] 0x310:0xc DW_TAG_array_type
	.long	796                             # DW_AT_type
	.byte	27                              # Abbrev [27] 0x315:0x6 DW_TAG_subrange_type
	.long	84                              # DW_AT_type
	.byte	8                               # DW_AT_count
	.byte	0                               # End Of Children Mark
	.byte	6                               # Abbrev [6] 0x31c:0x7 DW_TAG_base_type
	.long	.Linfo_string42                 # DW_AT_name
	.byte	8                               # DW_AT_encoding
	.byte	1                               # DW_AT_byte_size
	.byte	28                              # Abbrev [28] 0x323:0xb DW_TAG_typedef
	.long	814                             # DW_AT_type
	.long	.Linfo_string44                 # DW_AT_name
	.byte	3                               # DW_AT_decl_file
	.byte	20                              # DW_AT_decl_line
	.byte	9                               # Abbrev [9] 0x32e:0x5 DW_TAG_pointer_type
	.long	819                             # DW_AT_type
	.byte	29                              # Abbrev [29] 0x333:0x11 DW_TAG_subroutine_type
	.byte	17                              # Abbrev [17] 0x334:0x5 DW_TAG_formal_parameter
	.long	680                             # DW_AT_type
	.byte	17                              # Abbrev [17] 0x339:0x5 DW_TAG_formal_parameter
	.long	836                             # DW_AT_type
	.byte	17                              # Abbrev [17] 0x33e:0x5 DW_TAG_formal_parameter
	.long	836                             # DW_AT_type
	.byte	0                               # End Of Children Mark
	.byte	13                              # Abbrev [13] 0x344:0x5 DW_TAG_reference_type
	.long	841                             # DW_AT_type
	.byte	5                               # Abbrev [5] 0x349:0x5 DW_TAG_const_type
	.long	517                             # DW_AT_type
	.byte	30                              # Abbrev [30] 0x34e:0x70 DW_TAG_subprogram
	.long	.Linfo_string45                 # DW_AT_name
	.byte	5                               # DW_AT_decl_file
	.byte	1                               # DW_AT_decl_line
                                        # DW_AT_external
	.byte	1                               # DW_AT_inline
	.byte	31                              # Abbrev [31] 0x356:0xb DW_TAG_formal_parameter
	.long	.Linfo_string46                 # DW_AT_name
	.byte	5                               # DW_AT_decl_file
	.byte	1                               # DW_AT_decl_line
	.long	517                             # DW_AT_type
	.byte	31                              # Abbrev [31] 0x361:0xb DW_TAG_formal_parameter
	.long	.Linfo_string47                 # DW_AT_name
	.byte	5                               # DW_AT_decl_file
	.byte	1                               # DW_AT_decl_line
	.long	517                             # DW_AT_type
	.byte	31                              # Abbrev [31] 0x36c:0xb DW_TAG_formal_parameter
	.long	.Linfo_string48                 # DW_AT_name
	.byte	5                               # DW_AT_decl_file
	.byte	1                               # DW_AT_decl_line
	.long	384                             # DW_AT_type
	.byte	31                              # Abbrev [31] 0x377:0xb DW_TAG_formal_parameter
	.long	.Linfo_string49                 # DW_AT_name
	.byte	5                               # DW_AT_decl_file
	.byte	1                               # DW_AT_decl_line
	.long	384                             # DW_AT_type
	.byte	31                              # Abbrev [31] 0x382:0xb DW_TAG_formal_parameter
	.long	.Linfo_string50                 # DW_AT_name
	.byte	5                               # DW_AT_decl_file
	.byte	1                               # DW_AT_decl_line
	.long	362                             # DW_AT_type
	.byte	31                              # Abbrev [31] 0x38d:0xb DW_TAG_formal_parameter
	.long	.Linfo_string25                 # DW_AT_name
	.byte	5                               # DW_AT_decl_file
	.byte	1                               # DW_AT_decl_line
	.long	374                             # DW_AT_type
	.byte	32                              # Abbrev [32] 0x398:0xb DW_TAG_variable
	.long	.Linfo_string51                 # DW_AT_name
	.byte	5                               # DW_AT_decl_file
	.byte	2                               # DW_AT_decl_line
	.long	374                             # DW_AT_type
	.byte	33                              # Abbrev [33] 0x3a3:0x1a DW_TAG_lexical_block
	.byte	32                              # Abbrev [32] 0x3a4:0xb DW_TAG_variable
	.long	.Linfo_string52                 # DW_AT_name
	.byte	5                               # DW_AT_decl_file
	.byte	3                               # DW_AT_decl_line
	.long	257                             # DW_AT_type
	.byte	33                              # Abbrev [33] 0x3af:0xd DW_TAG_lexical_block
	.byte	32                              # Abbrev [32] 0x3b0:0xb DW_TAG_variable
	.long	.Linfo_string53                 # DW_AT_name
	.byte	5                               # DW_AT_decl_file
	.byte	4                               # DW_AT_decl_line
	.long	367                             # DW_AT_type
	.byte	0                               # End Of Children Mark
	.byte	0                               # End Of Children Mark
	.byte	0                               # End Of Children Mark
	.byte	34                              # Abbrev [34] 0x3be:0xa6 DW_TAG_subprogram
	.quad	.Lfunc_begin2                   # DW_AT_low_pc
	.long	.Lfunc_end2-.Lfunc_begin2       # DW_AT_high_pc
	.byte	1                               # DW_AT_frame_base
	.byte	86
                                        # DW_AT_GNU_all_call_sites
	.long	.Linfo_string56                 # DW_AT_linkage_name
	.long	.Linfo_string57                 # DW_AT_name
	.byte	1                               # DW_AT_decl_file
	.byte	2                               # DW_AT_decl_line
	.byte	23                              # Abbrev [23] 0x3d7:0xd DW_TAG_formal_parameter
	.byte	1                               # DW_AT_location
	.byte	85
	.long	.Linfo_string58                 # DW_AT_name
	.byte	1                               # DW_AT_decl_file
	.byte	2                               # DW_AT_decl_line
	.long	680                             # DW_AT_type
	.byte	23                              # Abbrev [23] 0x3e4:0xd DW_TAG_formal_parameter
	.byte	1                               # DW_AT_location
	.byte	84
	.long	.Linfo_string59                 # DW_AT_name
	.byte	1                               # DW_AT_decl_file
	.byte	2                               # DW_AT_decl_line
	.long	836                             # DW_AT_type
	.byte	31                              # Abbrev [31] 0x3f1:0xb DW_TAG_formal_parameter
	.long	.Linfo_string37                 # DW_AT_name
	.byte	1                               # DW_AT_decl_file
	.byte	3                               # DW_AT_decl_line
	.long	836                             # DW_AT_type
	.byte	35                              # Abbrev [35] 0x3fc:0x67 DW_TAG_inlined_subroutine
	.long	846                             # DW_AT_abstract_origin
	.long	.Ldebug_ranges0                 # DW_AT_ranges
	.byte	1                               # DW_AT_call_file
	.byte	4                               # DW_AT_call_line
	.byte	3                               # DW_AT_call_column
	.byte	36                              # Abbrev [36] 0x408:0x9 DW_TAG_formal_parameter
	.long	.Ldebug_loc0                    # DW_AT_location
	.long	854                             # DW_AT_abstract_origin
	.byte	36                              # Abbrev [36] 0x411:0x9 DW_TAG_formal_parameter
	.long	.Ldebug_loc4                    # DW_AT_location
	.long	898                             # DW_AT_abstract_origin
	.byte	36                              # Abbrev [36] 0x41a:0x9 DW_TAG_formal_parameter
	.long	.Ldebug_loc1                    # DW_AT_location
	.long	909                             # DW_AT_abstract_origin
	.byte	37                              # Abbrev [37] 0x423:0x9 DW_TAG_variable
	.long	.Ldebug_loc2                    # DW_AT_location
	.long	920                             # DW_AT_abstract_origin
	.byte	38                              # Abbrev [38] 0x42c:0x36 DW_TAG_lexical_block
	.quad	.Ltmp8                          # DW_AT_low_pc
	.long	.Ltmp13-.Ltmp8                  # DW_AT_high_pc
	.long	931                             # DW_AT_abstract_origin
	.byte	37                              # Abbrev [37] 0x43d:0x9 DW_TAG_variable
	.long	.Ldebug_loc5                    # DW_AT_location
	.long	932                             # DW_AT_abstract_origin
	.byte	38                              # Abbrev [38] 0x446:0x1b DW_TAG_lexical_block
	.quad	.Ltmp8                          # DW_AT_low_pc
	.long	.Ltmp13-.Ltmp8                  # DW_AT_high_pc
	.long	943                             # DW_AT_abstract_origin
	.byte	37                              # Abbrev [37] 0x457:0x9 DW_TAG_variable
	.long	.Ldebug_loc3                    # DW_AT_location
	.long	944                             # DW_AT_abstract_origin
	.byte	0                               # End Of Children Mark
	.byte	0                               # End Of Children Mark
	.byte	0                               # End Of Children Mark
	.byte	0                               # End Of Children Mark
	.byte	0                               # End Of Children Mark
.Ldebug_info_end0:
	.section	.debug_ranges,"",@progbits
.Ldebug_ranges0:
	.quad	.Ltmp8-.Lfunc_begin0
	.quad	.Ltmp13-.Lfunc_begin0
	.quad	.Ltmp14-.Lfunc_begin0
	.quad	.Ltmp15-.Lfunc_begin0
	.quad	0
	.quad	0
	.section	.debug_str,"MS",@progbits,1
.Linfo_string0:
	.asciz	"clang version 22.1.8"          # string offset=0
.Linfo_string1:
	.asciz	"/root/.cache/zig/tmp/c7e74ff172b87589374d554c0759f0d2-stdin.cpp" # string offset=21
.Linfo_string2:
	.asciz	"/tmp/wt/exam14"                # string offset=85
.Linfo_string3:
	.asciz	"char"                          # string offset=100
.Linfo_string4:
	.asciz	"__ARRAY_SIZE_TYPE__"           # string offset=105
.Linfo_string5:
	.asciz	"minidl_manifest"               # string offset=125
.Linfo_string6:
	.asciz	"begin"                         # string offset=141
.Linfo_string7:
	.asciz	"unsigned long long"            # string offset=147
.Linfo_string8:
	.asciz	"bytes"                         # string offset=166
.Linfo_string9:
	.asciz	"name"                          # string offset=172
.Linfo_string10:
	.asciz	"element"                       # string offset=177
.Linfo_string11:
	.asciz	"int"                           # string offset=185
.Linfo_string12:
	.asciz	"rows"                          # string offset=189
.Linfo_string13:
	.asciz	"columns"                       # string offset=194
.Linfo_string14:
	.asciz	"is_const"                      # string offset=202
.Linfo_string15:
	.asciz	"type"                          # string offset=211
.Linfo_string16:
	.asciz	"next"                          # string offset=216
.Linfo_string17:
	.asciz	"_ZN14MinidlVariable5firstEv"   # string offset=221
.Linfo_string18:
	.asciz	"first"                         # string offset=249
.Linfo_string19:
	.asciz	"MinidlVariable"                # string offset=255
.Linfo_string20:
	.asciz	"list"                          # string offset=270
.Linfo_string21:
	.asciz	"p"                             # string offset=275
.Linfo_string22:
	.asciz	"_ZN13MinidlPointerC4EPv"       # string offset=277
.Linfo_string23:
	.asciz	"MinidlPointer"                 # string offset=301
.Linfo_string24:
	.asciz	"float"                         # string offset=315
.Linfo_string25:
	.asciz	"x"                             # string offset=321
.Linfo_string26:
	.asciz	"unsigned int"                  # string offset=323
.Linfo_string27:
	.asciz	"y"                             # string offset=336
.Linfo_string28:
	.asciz	"z"                             # string offset=338
.Linfo_string29:
	.asciz	"_ZN4dim3C4Ejjj"                # string offset=340
.Linfo_string30:
	.asciz	"dim3"                          # string offset=355
.Linfo_string31:
	.asciz	"_ZN4dim3C4E5uint3"             # string offset=360
.Linfo_string32:
	.asciz	"uint3"                         # string offset=378
.Linfo_string33:
	.asciz	"_ZNK4dim3cv5uint3Ev"           # string offset=384
.Linfo_string34:
	.asciz	"operator uint3"                # string offset=404
.Linfo_string35:
	.asciz	"minidl_run_fibres"             # string offset=419
.Linfo_string36:
	.asciz	"grid"                          # string offset=437
.Linfo_string37:
	.asciz	"block"                         # string offset=442
.Linfo_string38:
	.asciz	"shared_bytes"                  # string offset=448
.Linfo_string39:
	.asciz	"order"                         # string offset=461
.Linfo_string40:
	.asciz	"threads"                       # string offset=467
.Linfo_string41:
	.asciz	"arguments"                     # string offset=475
.Linfo_string42:
	.asciz	"unsigned char"                 # string offset=485
.Linfo_string43:
	.asciz	"MinidlLaunch"                  # string offset=499
.Linfo_string44:
	.asciz	"MinidlThread"                  # string offset=512
.Linfo_string45:
	.asciz	"k"                             # string offset=525
.Linfo_string46:
	.asciz	"threadIdx"                     # string offset=527
.Linfo_string47:
	.asciz	"blockIdx"                      # string offset=537
.Linfo_string48:
	.asciz	"blockDim"                      # string offset=546
.Linfo_string49:
	.asciz	"gridDim"                       # string offset=555
.Linfo_string50:
	.asciz	"out"                           # string offset=563
.Linfo_string51:
	.asciz	"best"                          # string offset=567
.Linfo_string52:
	.asciz	"part"                          # string offset=572
.Linfo_string53:
	.asciz	"v"                             # string offset=577
.Linfo_string54:
	.asciz	"minidl_variables"              # string offset=579
.Linfo_string55:
	.asciz	"minidl_launch_0"               # string offset=596
.Linfo_string56:
	.asciz	"_ZL15minidl_thread_0PK12MinidlLaunchRK5uint3S4_" # string offset=612
.Linfo_string57:
	.asciz	"minidl_thread_0"               # string offset=660
.Linfo_string58:
	.asciz	"L"                             # string offset=676
.Linfo_string59:
	.asciz	"thread"                        # string offset=678
	.ident	"clang version 22.1.8"
	.section	".note.GNU-stack","",@progbits
	.addrsig
	.addrsig_sym _ZL15minidl_thread_0PK12MinidlLaunchRK5uint3S4_
	.section	.debug_line,"",@progbits
.Lline_table_start0:
