"""Tests that tests/plain_words.py finds its phrases in texts that people read, and nowhere else."""

from tests import plain_words


def test_phrases_are_found_in_docstrings_comments_and_messages(tmp_path):
    path = tmp_path / "a.py"
    path.write_text('"""Made anew."""\n'
                    "anew = 1  # so many of them\n"
                    "print('wrong in silence')\n"
                    "so_many = anew\n")
    assert [(line, phrase) for line, phrase, _ in plain_words.found(path)] == [
        (1, "anew"), (2, "so many"), (3, "in silence")]


def test_pages_and_kernels_are_read_line_by_line(tmp_path):
    path = tmp_path / "a.cu"
    path.write_text("// one\n// of which two\n")
    (line, phrase, better), = plain_words.found(path)
    assert (line, phrase) == (2, "of which") and better


def test_what_has_been_read_stays_free_of_them():
    assert plain_words.main() == 0
