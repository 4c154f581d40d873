"""`minidl plan`: what it prints, and what it says when a wish cannot be."""

import re

import pytest

from minidl.cli import main as cli
from minidl.cli import plan

ARGS = ["plan", "--ranks", "8", "--net", "nodes=2,intra=1Tbit,1us,inter=10Gbit,20us"]


def test_a_table_and_a_reason(capsys):
    assert cli.main([*ARGS, "--memory", "8GB", "--batch", "32", "--rows", "4"]) == 0
    out = capsys.readouterr().out
    assert "8 ranks of 8 GB and 1e+14 flop/s; gpt2: layers 12" in out
    assert out.count("wins") == 2 and "... and " in out and "follows from the other numbers." in out


def test_the_numbers_of_a_model_and_the_options_arrive(capsys):
    assert cli.main([*ARGS, "--memory", "100MiB", "--model", "4,64,4,32,500", "--zero", "2",
                     "--precision", "O2", "--recompute", "--flops", "2T"]) == 0
    out = capsys.readouterr().out
    assert "105 MB and 2e+12 flop/s; a GPT: layers 4, width 64" in out
    assert "8 rows a step; O2, ZeRO 2, recompute; AdamW" in out


def test_long_texts_and_experts_have_columns(capsys):
    assert cli.main([*ARGS, "--memory", "8GB", "--model", "4,64,4,4096,500", "--batch", "2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"dp +pp +tp +cp +rows x m", out) and re.search(r" cp \d wins: ", out)
    assert cli.main([*ARGS, "--memory", "8GB", "--model", "4,64,4,32,500,8,2", "--cp", "1"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"dp +pp +tp +ep +rows x m", out) and "experts 8, top_k 2" in out


def test_all_that_is_printed_has_its_chinese(capsys, monkeypatch):
    monkeypatch.setenv("MINIDL_LANG", "zh")
    for model, memory in [("gpt2-xl", "16GB"), ("4,512,8,16384,4096", "2GB"),
                          ("4,512,8,512,4096,16,2", "1GB"), ("gpt2", "90MB")]:
        cli.main([*ARGS, "--memory", memory, "--model", model, "--batch", "8"])
        out, err = capsys.readouterr()
        left = re.sub(r"gpt2-xl|gpt2|GPT|zb-h1|gpipe|1f1b|interleaved|minidl plan|AdamW|"
                      r"--precision O2|--zero|--recompute|ZeRO|Ulysses|rank|flop|token|"
                      r"all-(reduce|to-all)", "", out + err)
        words = re.findall(r"[A-Za-z]{3,}", left)
        assert not words, (words, left)


@pytest.mark.parametrize("more, message", [
    (["--memory", "100MB"], "no plan fits into 100 MB. The smallest plan is "),
    (["--memory", "16 apples"], "--memory wants bytes such as 16GB"),
    (["--memory", "1GB", "--model", "gtp2"], "--model wants gpt2, .*Got 'gtp2'"),
    (["--memory", "1GB", "--flops", "0"], "--flops wants flop/s such as 1e14"),
    (["--memory", "1GB", "--model", "2,10,3,8,9"], "width is divisible by its number of heads"),
])
def test_what_cannot_be_ends_with_2_and_says_why(more, message, capsys):
    assert cli.main([*ARGS, *more]) == 2
    err = capsys.readouterr().err
    assert err.startswith("minidl plan: ") and re.search(message, err), err


def test_a_network_that_is_none_is_refused(capsys):
    assert cli.main(["plan", "--ranks", "8", "--net", "fast", "--memory", "1GB"]) == 2
    assert "Write it like '1Gbit,50us'" in capsys.readouterr().err


def test_units():
    assert [plan.n_bytes(text) for text in ("16GB", "16GiB", "7B", ".5kB")] == [
        16e9, 16 * 2**30, 7, 500]
    assert [plan.rate(text) for text in ("1e14", "100T", "2.5P")] == [1e14, 1e14, 2.5e15]
