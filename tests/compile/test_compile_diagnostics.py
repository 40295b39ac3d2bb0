from __future__ import annotations

from sylvite.compile.diagnostics import explain

SOFTMAX = (
    "<unknown>:0: error: loc(\"softmax\"): failed to legalize operation 'torch.operator' that was explicitly "
    'marked illegal: %151 = "torch.operator"(%150) <{name = "onnx.Softmax"}> {torch.onnx.axis = 3 : si64} : '
    "(!torch.vtensor<[1,2],f32>) -> !torch.vtensor<[1,2],f32>\n"
    '<unknown>:0: note: loc("softmax"): see current operation: %151 = "torch.operator"(%150)\n'
)


def test_explain_unlowered_operator_names_node_and_operator():
    message = explain("iree-compile", 1, SOFTMAX)
    assert "softmax: no lowering for onnx.Softmax: {torch.onnx.axis = 3 : si64}" in message
    assert "advice: the compiler has no lowering for this operator" in message
    assert "see current operation" not in message


def test_explain_open_dims_are_named_with_both_cures():
    message = explain("iree-compile", 1, SOFTMAX, ["N", "height"])
    assert "leaves dims open (N, height)" in message
    assert 'dims={"N": 1}' in message
    assert "--dim N=1" in message


def test_explain_control_flow_has_its_own_advice():
    message = explain("iree-compile", 1, "x:1:1: error: failed to legalize operation onnx.If here", ["N"])
    assert "control flow" in message


def test_explain_keeps_three_errors_of_limited_length():
    output = "\n".join(f"model.mlir:{line}:1: error: {'x' * 1000} {line}" for line in range(50))
    lines = explain("iree-compile", 1, output).splitlines()
    assert len(lines) == 4
    assert all(len(line) < 310 for line in lines)
    assert lines[1].startswith("  model.mlir:0:1: x")


def test_explain_repeated_error_is_told_once():
    message = explain("iree-compile", 1, "a:1:1: error: same\na:1:1: error: same\n")
    assert message.count("same") == 1


def test_explain_crash_names_signal():
    message = explain("iree-compile", -11, "Please report issues to x\n #0 0x1 foo\n #1 0x2 bar\n")
    assert message == "iree-compile crashed (SIGSEGV) on this model: a bug in the compiler"


def test_explain_killed_compiler_suggests_memory():
    assert "memory" in explain("iree-compile", -9, "")


def test_explain_llvm_fatal_error_counts_as_crash():
    assert "crashed (exit code 1)" in explain(
        "iree-compile", 1, "LLVM ERROR: Cannot select: t1\nStack dump:\n"
    )


def test_explain_without_error_lines_shows_last_words():
    assert "  the end" in explain("iree-lld", 1, "something\n\nthe end\n")


def test_explain_unknown_flag_points_to_help():
    output = "iree-compile: Unknown command line argument '--foo'.  Try: 'iree-compile --help'\n"
    assert "iree-compile --help" in explain("iree-compile", 1, output)


def test_explain_location_of_inlined_code_names_the_innermost_node():
    output = (
        '<unknown>:0: error: loc(callsite("pool" at "graph")): failed to legalize operation \'arith.truncf\' '
        'that was explicitly marked illegal: %2 = "arith.truncf"(%1) : (f64) -> f32\n'
    )
    message = explain("iree-compile", 1, output)
    assert "  pool: failed to legalize operation 'arith.truncf'" in message
    assert "--iree-input-demote-f64-to-f32=true" in message
