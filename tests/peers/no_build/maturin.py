"""A build backend that builds nothing: it tells pip the name and version of the sdist around it."""

from pathlib import Path


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    lines = Path("PKG-INFO").read_text().splitlines()
    told = dict(line.split(": ", 1) for line in lines if line.startswith(("Name: ", "Version: ")))
    folder = Path(metadata_directory) / f"{told['Name']}-{told['Version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("\n".join(
        ["Metadata-Version: 2.1", *(f"{key}: {value}" for key, value in told.items()), ""]))
    return folder.name
