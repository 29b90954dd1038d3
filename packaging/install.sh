#!/bin/sh
# Installs this archive: for all users below /usr/local (as root), or with --user for one user below ~/.local.
#
#   ./install.sh [--user] [--prefix DIR]
#
# PREFIX is another spelling of --prefix. DESTDIR is put before every path, for packages; then nothing of the running system is
# touched. Everything installed is listed in PREFIX/share/sluice/installed, by which PREFIX/share/sluice/uninstall.sh removes it.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
user=
prefix=${PREFIX:-}
while [ $# -gt 0 ]; do
    case $1 in
    --user) user=yes ;;
    --prefix)
        prefix=${2:?--prefix needs a folder}
        shift
        ;;
    --prefix=*) prefix=${1#--prefix=} ;;
    *)
        sed -n '2,7s/^# \{0,1\}//p' "$0"
        case $1 in --help | -h) exit 0 ;; *) exit 64 ;; esac
        ;;
    esac
    shift
done
destdir=${DESTDIR:-}

if [ -n "$user" ]; then
    data=${XDG_DATA_HOME:-$HOME/.local/share}
    prefix=${prefix:-$HOME/.local}
    configuration=${XDG_CONFIG_HOME:-$HOME/.config}/sluice
    share=$data
    units=$data/systemd
else
    prefix=${prefix:-/usr/local}
    configuration=/etc/sluice
    share=$prefix/share
    # systemd looks there, too.
    units=$prefix/lib/systemd
    if [ -z "$destdir" ] && [ "$(id -u)" != 0 ]; then
        echo "install.sh: for all users it has to be root: sudo ./install.sh; for you alone: ./install.sh --user" >&2
        exit 1
    fi
fi
case $prefix in
/*) ;;
*)
    echo "install.sh: the prefix has to be an absolute path, not $prefix" >&2
    exit 64
    ;;
esac
list=$prefix/share/sluice/installed
upgrade=
if [ -e "$destdir$list" ]; then upgrade=yes; fi
mkdir -p "$destdir$prefix/share/sluice"
: >"$destdir$list.new"

# put MODE SOURCE TARGET
put() {
    mkdir -p "$destdir$(dirname "$3")"
    # Renamed into place, so that a program that runs isn't written to.
    install -m "$1" "$2" "$destdir$3.new"
    mv -f "$destdir$3.new" "$destdir$3"
    echo "$3" >>"$destdir$list.new"
}

# A unit with the program's place in it.
put_unit() {
    sed "s|/usr/bin/sluiced|$prefix/bin/sluiced|" "$1" >"$destdir$list.unit"
    put 644 "$destdir$list.unit" "$2"
    rm -f "$destdir$list.unit"
}

put 755 "$here/bin/sluiced" "$prefix/bin/sluiced"
put 755 "$here/bin/sluice" "$prefix/bin/sluice"
for page in "$here"/share/man/man?/*; do
    section=$(basename "$(dirname "$page")")
    put 644 "$page" "$share/man/$section/$(basename "$page")"
done
put 644 "$here/share/bash-completion/completions/sluice" "$share/bash-completion/completions/sluice"
put 644 "$here/share/zsh/site-functions/_sluice" "$share/zsh/site-functions/_sluice"
put 644 "$here/share/fish/vendor_completions.d/sluice.fish" "$share/fish/vendor_completions.d/sluice.fish"
for file in "$here"/share/doc/sluice/*; do
    put 644 "$file" "$share/doc/sluice/$(basename "$file")"
done
for unit in sluice.service sluice.socket; do
    put_unit "$here/lib/systemd/user/$unit" "$units/user/$unit"
    if [ -z "$user" ]; then
        put_unit "$here/lib/systemd/system/$unit" "$units/system/$unit"
    fi
done
if [ -z "$user" ]; then
    for file in "$here"/lib/systemd/examples/*; do
        put 644 "$file" "$share/doc/sluice/examples/sluice.service.d/$(basename "$file")"
    done
    put 644 "$here/lib/sysusers.d/sluice.conf" /etc/sysusers.d/sluice.conf
    put 644 "$here/lib/tmpfiles.d/sluice.conf" /etc/tmpfiles.d/sluice.conf
fi
put 755 "$here/uninstall.sh" "$prefix/share/sluice/uninstall.sh"
# What an earlier version had and this one hasn't.
if [ -f "$destdir$list" ]; then
    grep -Fxv -f "$destdir$list.new" "$destdir$list" | while read -r file; do rm -f "$destdir$file"; done || true
fi
mv "$destdir$list.new" "$destdir$list"
# The administrator's own: written once, and never removed but by --purge.
if [ ! -e "$destdir$configuration/sluiced.toml" ]; then
    mkdir -p "$destdir$configuration"
    install -m 644 "$here/etc/sluice/sluiced.toml" "$destdir$configuration/sluiced.toml"
fi

[ -z "$destdir" ] || exit 0
if [ -n "$user" ]; then
    if systemctl --user daemon-reload 2>/dev/null; then
        systemctl --user try-restart sluice.service || true
        echo "To have the daemon started by its first client: systemctl --user enable --now sluice.socket"
    fi
    case :$PATH: in
    *:"$prefix/bin":*) ;;
    *) echo "Add $prefix/bin to PATH." ;;
    esac
    echo "Installed. Try: sluice run demo"
    exit 0
fi
if command -v systemd-sysusers >/dev/null 2>&1; then
    systemd-sysusers sluice.conf
    systemd-tmpfiles --create sluice.conf
fi
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
    # Not where it was there before, and the administrator has turned it off.
    if [ -z "$upgrade" ]; then systemctl enable --now sluice.socket; fi
    systemctl try-restart sluice.service
    echo "Installed. Add yourself to the groups sluice and sluice-admin, log in again, and try: sluice run demo"
else
    echo "Installed. Try: sluice run demo"
fi
