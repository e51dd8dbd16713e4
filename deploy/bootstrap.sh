#!/bin/sh
# Make a bare Debian machine ready: system packages, Python, the virtual environment. Installs only what is
# missing and starts nothing: a Redis, libvirtd or PostgreSQL of yours is never touched.
#
#   deploy/bootstrap.sh [--driver libvirt|fake] [--tests]
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
venv=$root/.venv
driver=libvirt
tests=no
while [ $# -gt 0 ]; do
    case $1 in
        --driver) driver=${2:-}; shift ;;
        --tests) tests=yes ;;
        *) echo "bootstrap: unknown argument $1; use --driver libvirt|fake, --tests" >&2; exit 2 ;;
    esac
    shift
done

say() { printf '  %s\n' "$*"; }
stop() { printf 'bootstrap: %s\n' "$*" >&2; exit 1; }

# Looks for the thing itself, not for a package's name: however it came here, it is not installed again.
lacks() { # $1: a command, or a pattern of files
    case $1 in
        /*) for file in $1; do [ ! -e "$file" ] || return 1; done ;;
        *) PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null && return 1 ;;
    esac
    return 0
}

missing() { # lines of "thing package" on stdin -> the packages that are missing
    while read -r thing package; do
        if lacks "$thing"; then printf ' %s' "$package"; fi
    done
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo "$@"
    else stop "needs root to install packages; run as root, or install sudo, or install them yourself: $*"
    fi
}

# Debian starts a daemon when its package is installed. Ours run on ports of their own, so it shall not.
install_quietly() {
    policy=/usr/sbin/policy-rc.d
    ours=no
    if [ ! -e "$policy" ]; then
        ours=yes
        printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
        as_root chmod 755 "$policy"
    fi
    status=0
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" \
        >"$apt_log" 2>&1 || status=$?
    [ "$ours" = no ] || as_root rm -f "$policy"
    return "$status"
}

apt_install() { # $1: what to do when it cannot be had; the rest: packages
    advice=$1
    shift
    [ $# -gt 0 ] || return 0
    command -v apt-get >/dev/null || stop "no apt-get here; install these yourself: $*. $advice"
    apt_log=$(mktemp)
    say "installing $*"
    if ! install_quietly "$@"; then
        as_root apt-get update -q >"$apt_log" 2>&1 || true # lists may be stale, or never fetched
        if ! install_quietly "$@"; then
            tail -n 5 "$apt_log" >&2
            rm -f "$apt_log"
            stop "could not install: $*. $advice"
        fi
    fi
    rm -f "$apt_log"
}

find_python() {
    for candidate in python3.13 python3.12 python3.11 python3; do
        path=$(command -v "$candidate") || continue
        if "$path" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null
        then echo "$path"; return 0
        fi
    done
    return 1
}

base_packages() {
    missing <<END
redis-server redis-server
ld binutils
qemu-img qemu-utils
END
}

guest_packages() { # libvirt, QEMU, what compiles its Python binding, what builds a guest's disk
    missing <<END
libvirtd libvirt-daemon
/usr/lib/*/libvirt/connection-driver/libvirt_driver_qemu.so libvirt-daemon-driver-qemu
virsh libvirt-clients
qemu-system-x86_64 qemu-system-x86
gcc gcc
/usr/include/stdio.h libc6-dev
pkg-config pkg-config
/usr/include/libvirt/libvirt.h libvirt-dev
syslinux syslinux
/usr/lib/syslinux/mbr/mbr.bin syslinux-common
mcopy mtools
sfdisk fdisk
mkfs.vfat dosfstools
mke2fs e2fsprogs
END
}

test_packages() {
    missing <<END
/usr/lib/postgresql/*/bin/initdb postgresql
systemd-analyze systemd
/usr/lib/rabbitmq/bin/rabbitmq-server rabbitmq-server
sshd openssh-server
ip iproute2
iptables iptables
/usr/lib/python3/dist-packages/apt python3-apt
/usr/lib/python3*/ensurepip python3-venv
END
}

# The package lists below are words without quotes on purpose.
# shellcheck disable=SC2046
system() {
    apt_install "Mend apt (network? mirror?) and run the same command again." $(base_packages)
    if [ "$driver" = libvirt ]; then
        apt_install "Where libvirt cannot be had, the same cloud runs without real guests: make up DRIVER=fake" \
            $(guest_packages)
    fi
    if [ "$tests" = yes ]; then
        apt_install "The tests need the programs of a PostgreSQL and a RabbitMQ server; they start their own." $(test_packages)
    fi
    python=$(find_python) || {
        apt_install "Install Python 3.11, 3.12 or 3.13 with its venv module." python3 python3-venv
        python=$(find_python) || stop "found no Python 3.11, 3.12 or 3.13 with venv on PATH; install one (Debian 12 and later have it: apt-get install python3-venv)."
    }
    if [ "$driver" = libvirt ] && ! has_headers; then # libvirt-python is compiled
        apt_install "Install the C headers of $python." "$(basename "$(readlink -f "$python")")-dev"
    fi
}

has_headers() {
    "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
}

# Without libvirt's headers its Python binding does not compile, and the fake driver does without it.
requirements() {
    if [ "$driver" = fake ] && lacks /usr/include/libvirt/libvirt.h; then
        grep -v '^libvirt-python' "$root/requirements.txt"
    else
        cat "$root/requirements.txt"
    fi
    cat "$root/requirements-dev.txt"
}

environment() {
    if ! "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        say "making $venv with $python"
        "$python" -m venv --clear "$venv" || stop "could not make $venv; apt-get install python3-venv, then run this again."
    fi
    stamp=$venv/.stillwater-requirements
    requirements >"$stamp.wanted"
    if cmp -s "$stamp.wanted" "$stamp"; then
        rm -f "$stamp.wanted"
        return 0
    fi
    say "installing the Python packages of requirements.txt and requirements-dev.txt"
    install_python_packages "$stamp.wanted" || stop "could not install the Python packages (output above); check the network or the package index and run this again."
    mv "$stamp.wanted" "$stamp"
}

install_python_packages() { # $1: requirements file
    # uv takes a fifth of pip's time; the machine's index settings reach it by uv's own variables
    if "$venv/bin/python" -m pip install -qq uv; then
        UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}} \
            "$venv/bin/uv" pip install -q --compile-bytecode --python "$venv/bin/python" -r "$1" && return 0
        say "uv did not manage, pip tries"
    fi
    "$venv/bin/python" -m pip install -q -r "$1"
}

# The tests of bare metal start an Ironic of their own. One for all checkouts of this machine; deploy/local/ironic.py
# looks for it at the same place.
ironic() {
    wanted=$root/deploy/ironic-requirements.txt
    version=$(sed -n 's/^ironic==//p' "$wanted")
    home=${XDG_CACHE_HOME:-$HOME/.cache}/stillwater/ironic-$version
    if cmp -s "$wanted" "$home/requirements.txt"; then return 0; fi
    say "installing Ironic $version into $home"
    "$venv/bin/python" -m pip install -qq uv &&
        "$venv/bin/uv" venv -q --clear --python "$venv/bin/python" "$home" &&
        UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}} "$venv/bin/uv" pip install -q --compile-bytecode \
            --no-deps --python "$home/bin/python" -r "$wanted" ||
        stop "could not install Ironic $version (output above); check the network or the package index and run this again."
    cp "$wanted" "$home/requirements.txt"
}

# A clone is not installed as its wheel is, so its command is written here. -P: no folder called cloud in the place where
# somebody types it is taken for ours.
command_line() {
    quoted=$(printf '%s' "$root" | sed "s/'/'\\\\''/g")
    cat >"$venv/bin/.stillwater" <<END
#!/bin/sh
# Made by deploy/bootstrap.sh: python -m cloud.cli from anywhere.
PYTHONPATH='$quoted' exec '$quoted/.venv/bin/python' -P -m cloud.cli "\$@"
END
    chmod 755 "$venv/bin/.stillwater"
    if cmp -s "$venv/bin/.stillwater" "$venv/bin/stillwater" && [ -x "$venv/bin/stillwater" ]; then
        rm -f "$venv/bin/.stillwater"
    else
        mv -f "$venv/bin/.stillwater" "$venv/bin/stillwater"
    fi
}

case $driver in libvirt | fake) ;; *) stop "--driver is libvirt or fake, not '$driver'" ;; esac
system
environment
command_line
if [ "$tests" = yes ]; then ironic; fi
