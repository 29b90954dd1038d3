#!/bin/sh
# Removes what install.sh installed below a prefix.
#
#   PREFIX/share/sluice/uninstall.sh [--purge]
#
# Configuration, models and converted weights stay; --purge removes them, and the user and groups of the service.
set -eu
purge=
case ${1:-} in
'') ;;
--purge) purge=yes ;;
*)
    sed -n '2,6s/^# \{0,1\}//p' "$0"
    case $1 in --help | -h) exit 0 ;; *) exit 64 ;; esac
    ;;
esac
destdir=${DESTDIR:-}
# It lies in PREFIX/share/sluice, with the list beside it. What is removed is named without $DESTDIR there.
own=$(cd "$(dirname "$0")" && pwd)
list=$own/installed
if [ ! -f "$list" ]; then
    echo "uninstall.sh: there is no $list; run the one in PREFIX/share/sluice" >&2
    exit 1
fi
system=
if grep -qx /etc/sysusers.d/sluice.conf "$list"; then system=yes; fi
if [ -z "$destdir" ]; then
    if [ -n "$system" ] && [ -d /run/systemd/system ]; then
        systemctl disable --now sluice.socket sluice.service 2>/dev/null || true
    elif [ -z "$system" ]; then
        systemctl --user disable --now sluice.socket sluice.service 2>/dev/null || true
    fi
fi
# Folders that are ours alone, the inner ones first.
folders=$(sed -n 's|/[^/]*$||p; s|/sluice.service.d$||p' "$list" | grep /sluice | sort -ru)
while read -r file; do
    rm -f "$destdir$file"
done <"$list"
rm -f "$list"
printf '%s\n' "$folders" | while read -r folder; do
    rmdir "$destdir$folder" 2>/dev/null || true
done
if [ -n "$purge" ] && [ -n "$system" ]; then
    rm -f "$destdir/etc/sluice/sluiced.toml" "$destdir/etc/sluice/models.toml"
    rmdir "$destdir/etc/sluice" 2>/dev/null || true
    rm -rf "$destdir/var/lib/sluice" "$destdir/var/cache/sluice" "$destdir/run/sluice"
    if [ -z "$destdir" ]; then
        if getent passwd sluice >/dev/null; then userdel sluice; fi
        for group in sluice sluice-admin; do
            if getent group "$group" >/dev/null; then groupdel "$group"; fi
        done
    fi
elif [ -n "$purge" ]; then
    configuration=${XDG_CONFIG_HOME:-$HOME/.config}/sluice
    rm -f "$configuration/sluiced.toml" "$configuration/models.toml"
    rmdir "$configuration" 2>/dev/null || true
    rm -rf "${XDG_DATA_HOME:-$HOME/.local/share}/sluice" "${XDG_CACHE_HOME:-$HOME/.cache}/sluice" \
        "${XDG_STATE_HOME:-$HOME/.local/state}/sluice"
fi
if [ -z "$destdir" ]; then
    if [ -n "$system" ] && [ -d /run/systemd/system ]; then
        systemctl daemon-reload
    elif [ -z "$system" ]; then
        systemctl --user daemon-reload 2>/dev/null || true
    fi
fi
echo "Removed.$([ -n "$purge" ] || echo " Configuration, models and converted weights stay; --purge removes them.")"
