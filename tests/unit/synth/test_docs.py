"""Documents lose the blocks that name what is gone, whatever their encoding."""

from etude.synth.docs import clean_documents


def test_a_document_that_is_not_utf_8_loses_its_blocks_and_no_other_byte(tmp_path):
    kept = b"Caf\xe9 \x85 na\xefve\r\n\r\n- b\xff\n"
    for name, data in {"README.txt": b"Caf\xe9 \x85 na\xefve\r\n\r\n- `gone`: f\xfcr\n- b\xff\n", "CHANGES": kept}.items():
        (tmp_path / name).write_bytes(data)
    files = {place.name: place for place in tmp_path.iterdir()}
    assert clean_documents(files, frozenset(["gone"]), frozenset()) == {"README.txt": kept}
