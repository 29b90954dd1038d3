#!/bin/bash
# Runs inside a booted clean root without a network, started by try.service: installs, uses, upgrades and removes the packages in
# /packages as an administrator would, and says in /packages/result how that went.
set -Eeuo pipefail
exec >>/packages/log 2>&1
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 HOME=/root USER=root
PROMPT="Tell me a story."

finish() {
    status=$?
    [ "$status" = 0 ] && echo passed >/packages/result || echo "failed: line $last: $failed" >/packages/result
    journalctl --no-pager -u sluice -u user@1000 >/packages/journal || true
    systemctl poweroff --no-block
}
last=0 failed=nothing
trap 'last=$LINENO failed=$BASH_COMMAND' ERR
trap finish EXIT

step() { printf '\n== %s\n' "$*"; }
# as USER COMMAND...: as somebody who has just logged in.
as() {
    local user=$1
    shift
    runuser -u "$user" -- env HOME="/home/$user" USER="$user" XDG_RUNTIME_DIR="/run/user/$(id -u "$user")" "$@"
}
value() { systemctl show --value -p "$1" sluice.service; }
# until WHAT CONDITION...: at most half a minute.
until_true() {
    local what=$1
    shift
    for _ in $(seq 300); do
        if "$@"; then return 0; fi
        sleep 0.1
    done
    echo "waited in vain for $what"
    return 1
}
# refused PATTERN COMMAND...: fails, and says why.
refused() {
    local pattern=$1
    shift
    if "$@" >/tmp/said 2>&1; then echo "$* should have failed"; return 1; fi
    cat /tmp/said
    grep -q "$pattern" /tmp/said
}
is_ready() { as carol sluice status --json | grep -q '"state":"ready"'; }
nothing_left() {
    local left
    left=$(find / -xdev \( -path /packages -o -path /proc -o -path /sys -o -path /var/log -o -path /run/log -o -path /tmp \) -prune -o -iname '*sluice*' -print)
    [ -z "$left" ] || { echo "left behind: $left"; return 1; }
    for name in sluice sluice-admin; do
        if getent passwd "$name" || getent group "$name"; then return 1; fi
    done
}

# Nobody is there to say yes.
echo 'APT::Get::Assume-Yes "true";' >/etc/apt/apt.conf.d/99yes
useradd --create-home --uid 1000 alice
useradd --create-home bob
useradd --create-home carol
install -d -m 700 -o bob "/run/user/$(id -u bob)"
install -d -m 700 -o carol "/run/user/$(id -u carol)"

step "install and get a first answer, by the lines of the README"
cd /packages/old
begin=$(date +%s%N)
while read -r line; do
    echo "\$ $line"
    case $line in
    sudo\ *) USER=carol bash -c "${line#sudo }" ;;
    *) as carol bash -c "$line" | tee /tmp/answer ;;
    esac
done </packages/readme
[ "$(wc -w </tmp/answer)" -gt 3 ]
echo "$((($(date +%s%N) - begin) / 1000000))" >/packages/first-answer-ms
cd /

step "the service is ready, and says what it serves"
systemctl is-active sluice.socket sluice.service
[ "$(value StatusText)" = "serving sluice-demo" ]
[ "$(value User)" = sluice ]
as carol sluice doctor
as carol sluice doctor | grep -q '^ok *service'
systemd-analyze security --no-pager sluice.service >/packages/security
tail -n 1 /packages/security

step "who is in no group is told which, who is in one may generate, and no more"
refused 'usermod -aG sluice' as bob sluice status
usermod -aG sluice alice
as alice sluice generate --length 8 "$PROMPT"
refused 'needs the role operate; you have generate' as alice sluice unload

step "a daemon that hangs is found by the watchdog, one that is killed starts again"
mkdir -p /run/systemd/system/sluice.service.d
printf '[Service]\nWatchdogSec=3\n' >/run/systemd/system/sluice.service.d/try.conf
systemctl daemon-reload
systemctl restart sluice.service
until_true "the model" is_ready
before=$(value MainPID)
kill -STOP "$before"
restarted() { [ "$(value NRestarts)" -ge 1 ] && [ "$(value ActiveState)" = active ]; }
until_true "the watchdog" restarted
journalctl --no-pager -u sluice | grep -q 'Watchdog timeout'
rm /run/systemd/system/sluice.service.d/try.conf
systemctl daemon-reload
systemctl restart sluice.service
before=$(value MainPID)
kill -KILL "$before"
another() { [ "$(value MainPID)" != 0 ] && [ "$(value MainPID)" != "$before" ] && [ "$(value ActiveState)" = active ]; }
until_true "another daemon" another
# By the socket, which stayed open.
as alice sluice generate --length 8 "$PROMPT"

step "requests that run get to their end when the service stops, and the next client starts it again"
as carol sluice generate --json --seed 1 "$PROMPT" >/tmp/drained &
client=$!
is_running() { as carol sluice ps --json | grep -q '"running":1' || as carol sluice requests | grep -q running; }
until_true "a running request" is_running
systemctl stop sluice.service
wait "$client"
tail -n 1 /tmp/drained | grep -q '"event":"done"'
[ "$(value Result)" = success ]
as alice sluice generate --length 8 "$PROMPT"

step "a wrong configuration stops the service once, and doctor says where"
cp /etc/sluice/sluiced.toml /tmp/sluiced.toml
echo 'quue = 7' >>/etc/sluice/sluiced.toml
systemctl restart sluice.service || true
has_failed() { [ "$(value ActiveState)" = failed ]; }
until_true "the failure" has_failed
[ "$(value ExecMainStatus)" = 78 ]
[ "$(value NRestarts)" = 0 ]
refused 'unknown key .quue.' sluiced doctor
cp /tmp/sluiced.toml /etc/sluice/sluiced.toml
systemctl reset-failed sluice.service sluice.socket
systemctl restart sluice.socket sluice.service

step "an upgrade restarts the daemon and keeps the administrator's configuration"
echo 'queue = 7' >>/etc/sluice/sluiced.toml
systemctl restart sluice.service
until_true "the model" is_ready
before=$(value MainPID)
dpkg -i /packages/new/*.deb
until_true "another daemon" another
grep -q 'queue = 7' /etc/sluice/sluiced.toml
until_true "the model" is_ready
dpkg --verify sluice

step "what is removed is gone, but for configuration and models"
pid=$(value MainPID)
apt-get remove -y sluice
[ ! -e "/proc/$pid" ]
for file in /usr/bin/sluice /usr/bin/sluiced /usr/lib/systemd/system/sluice.service /usr/lib/sysusers.d/sluice.conf \
    /usr/share/man/man1/sluice.1.gz /usr/share/bash-completion/completions/sluice; do
    [ ! -e "$file" ]
done
grep -q 'queue = 7' /etc/sluice/sluiced.toml
[ -d /var/lib/sluice ]
dpkg -i /packages/new/*.deb
as carol sluice generate --length 8 "$PROMPT"
apt-get remove -y sluice

step "what is purged leaves nothing"
apt-get purge -y sluice
nothing_left

step "the archive, for all users"
mkdir /tmp/archive
tar -xzf /packages/archive.tar.gz -C /tmp/archive --strip-components=1
/tmp/archive/install.sh
usermod -aG sluice,sluice-admin carol
as carol sluice run demo "$PROMPT"
[ "$(value FragmentPath)" = /usr/local/lib/systemd/system/sluice.service ]
[ "$(value ActiveState)" = active ]
/tmp/archive/install.sh
/usr/local/share/sluice/uninstall.sh
[ -e /etc/sluice/sluiced.toml ]
/tmp/archive/install.sh
/usr/local/share/sluice/uninstall.sh --purge
nothing_left

step "the archive, for one user, whose units start the daemon"
loginctl enable-linger alice
manager() { [ -S /run/user/1000/systemd/private ]; }
until_true "the user's manager" manager
as alice /tmp/archive/install.sh --user
as alice systemctl --user enable --now sluice.socket
as alice env PATH="/home/alice/.local/bin:$PATH" sluice run demo "$PROMPT"
[ "$(as alice systemctl --user is-active sluice.service)" = active ]
as alice /home/alice/.local/bin/sluice doctor | grep "user's service"
as alice /home/alice/.local/share/sluice/uninstall.sh --purge
loginctl disable-linger alice
nothing_left
