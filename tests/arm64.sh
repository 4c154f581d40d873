#!/bin/sh
# Runs tests on an emulated ARM64 Linux: make test-arm. Root, on Debian or Ubuntu, with
#     apt install debootstrap qemu-user-static binfmt-support
# debootstrap makes a Debian for ARM64 in build/arm64; qemu runs its programs, some ten times as
# slowly as this machine would. zig, which compiles for ARM64 at full speed, makes the kernels.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
root=${ARM64:-$here/build/arm64}
python=3.11  # Debian 12's

for tool in debootstrap qemu-aarch64-static; do
  command -v $tool > /dev/null || { echo "arm64: no $tool; see the top of $0" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "arm64: wants root, for chroot" >&2; exit 2; }

if [ ! -x "$root/usr/bin/g++" ]; then
  debootstrap --arch=arm64 --variant=minbase --include=python3,python3-venv,g++,git bookworm "$root"
fi
wheels="$root/opt/wheels"
if [ ! -d "$wheels" ]; then
  "$here/.venv/bin/python" -m pip download --quiet --dest "$wheels" --only-binary=:all: \
    --python-version $python --implementation cp --abi cp311 --abi abi3 --abi none \
    --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
    --platform manylinux2014_aarch64 --platform manylinux_2_17_aarch64 \
    numpy greenlet mpi4py mpich ml_dtypes pytest pytest-timeout pytest-xdist setuptools
  chroot "$root" python3 -m venv /opt/venv
  chroot "$root" /opt/venv/bin/pip install --quiet --no-index --find-links /opt/wheels \
    numpy greenlet mpi4py mpich ml_dtypes pytest pytest-timeout pytest-xdist setuptools
fi
if [ ! -d "$root/opt/zig" ]; then
  "$here/.venv/bin/python" -m pip install --quiet --target "$here/build/zig" ziglang
  cp -r "$here/build/zig/ziglang" "$root/opt/zig"
fi

# a copy of the tracked files as they are now
rm -rf "$root/opt/minidl" && mkdir -p "$root/opt/minidl"
(cd "$here" && git ls-files -z | tar --null -T - -cf -) | tar -xf - -C "$root/opt/minidl"

for folder in proc dev; do
  mountpoint -q "$root/$folder" || mount --bind /$folder "$root/$folder"
done
trap 'umount "$root/proc" "$root/dev"' EXIT
# NumPy's float32 products warn under qemu, ones @ ones too: their values are right
chroot "$root" env -i HOME=/root LANG=C.UTF-8 PATH=/opt/venv/bin:/usr/bin:/bin \
  PYTHONPATH=/opt/minidl MINIDL_CXX="/opt/zig/zig c++ -target aarch64-linux-gnu" \
  sh -c "cd /opt/minidl && python -m pytest -q -n 2 --dist loadfile -p no:cacheprovider \
         --timeout 1800 -W 'ignore:divide by zero encountered in matmul' \
         -W 'ignore:overflow encountered in matmul' -W 'ignore:invalid value encountered in matmul' \
         ${*:-tests/cuda/host tests/ops/test_*kernel*.py tests/fused tests/comm}"
