#!/bin/busybox sh
# PID 1 of the tiny Linux guest.  Everything it has to say goes to the serial console
# as one line starting with "STILLWATER ".  Behaviour is chosen on the kernel command
# line (or in a config drive's meta_data.json "meta", where stillwater_x stands for stillwater.x):
#   stillwater.image=NAME        name printed on every boot
#   stillwater.acpi=honour|ignore|nodriver   power button: obey / log only / no driver at all
#   stillwater.shutdown_delay=N  seconds between the power button and power off
#   stillwater.ready_after=N     seconds after boot before the guest is ready; power
#                         button presses before that are lost (driver not loaded)
#   stillwater.tick=1            print STILLWATER TICK n every second (liveness)
#   stillwater.dirty=MB          keep rewriting MB megabytes of memory (slow migration)
#   stillwater.net=dhcp          udhcpc on eth0
#   stillwater.root=LABEL|none   ext4 label to mount and count boots on (default stillroot)
#   stillwater.shell=1|pipe|0    ttyS0: interactive shell (default), a shell that only reads lines
#                         (for scripts: no prompt, no echo, no cursor queries), or none
#   stillwater.panic=N           panic N seconds after ready
export PATH=/bin:/sbin:/usr/bin:/usr/sbin HOME=/root
up() { cut -d' ' -f1 /proc/uptime; }
say() { printf '\nSTILLWATER %s\n' "$*" > /dev/ttyS0; printf 'STILLWATER %s\n' "$*" > /dev/tty1 2>/dev/null; }

down() {            # down poweroff|reboot
    sync
    umount /mnt/root 2>/dev/null
    say "DOWN $1 uptime=$(up)"
    $1 -f
}

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev 2>/dev/null
mkdir -p /dev/pts /dev/shm /mnt/root /mnt/config
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
echo 3 > /proc/sys/kernel/printk
exec 9<>/dev/ttyS0      # held open: what is typed before the shell runs is kept

IMAGE=none ACPI=honour SHUTDOWN_DELAY=0 READY_AFTER=0 TICK=0 DIRTY=0 NET= ROOT=stillroot SHELL_ON=1 PANIC=
setopt() {
    case "$1" in
        stillwater.image) IMAGE=$2;; stillwater.acpi) ACPI=$2;; stillwater.shutdown_delay) SHUTDOWN_DELAY=$2;;
        stillwater.ready_after) READY_AFTER=$2;; stillwater.tick) TICK=$2;; stillwater.dirty) DIRTY=$2;;
        stillwater.net) NET=$2;; stillwater.root) ROOT=$2;; stillwater.shell) SHELL_ON=$2;; stillwater.panic) PANIC=$2;;
    esac
}
for w in $(cat /proc/cmdline); do case "$w" in stillwater.*=*) setopt "${w%%=*}" "${w#*=}";; esac; done

late="button.ko"
while read -r m; do
    case " $late " in *" $m "*) ;; *) insmod "/lib/modules/$m" 2>/dev/null;; esac
done < /lib/modules/order
# block devices appear asynchronously on IDE/SCSI only; virtio ones are there now

CFG=$(findfs LABEL=config-2 2>/dev/null)
if [ -n "$CFG" ] && mount -o ro "$CFG" /mnt/config; then
    J=/mnt/config/openstack/latest/meta_data.json
    for kv in $(tr ',{}' '\n\n\n' < $J | sed -n 's/^ *"stillwater_\([a-z_]*\)": *"\([^"]*\)".*/stillwater.\1=\2/p'); do
        setopt "${kv%%=*}" "${kv#*=}"
    done
    CONFIG=$(sed -n 's/.*"uuid": *"\([^"]*\)".*/\1/p' $J | head -1)
fi

say "BOOT image=$IMAGE kernel=$(uname -r) mem_kb=$(sed -n 's/MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo) cpus=$(grep -c ^processor /proc/cpuinfo) uptime=$(up)"
for d in /sys/block/*; do
    n=${d##*/}
    case $n in loop*|ram*) continue;; esac
    say "DISK $n bytes=$(( $(cat $d/size) * 512 )) serial=$(cat $d/serial 2>/dev/null) ro=$(cat $d/ro)"
done
[ -n "$CONFIG" ] && say "CONFIGDRIVE dev=$CFG uuid=$CONFIG"

if [ "$ROOT" != none ]; then
    R=$(findfs LABEL="$ROOT" 2>/dev/null)
    if [ -n "$R" ] && mount -t ext4 "$R" /mnt/root; then
        n=$(( $(cat /mnt/root/boots 2>/dev/null || echo 0) + 1 ))
        echo $n > /mnt/root/boots; sync
        say "ROOT dev=$R boots=$n id=$(cat /mnt/root/image-id 2>/dev/null)"
    fi
fi

ip link set lo up
if [ "$NET" = dhcp ]; then
    ip link set eth0 up
    cat > /run/dhcp.sh <<'X'
#!/bin/sh
[ "$1" = bound ] || [ "$1" = renew ] || exit 0
ip addr flush dev $interface
ip addr add $ip/${mask:-24} dev $interface
[ -n "$router" ] && ip route add default via $router
[ -n "$staticroutes" ] && set -- $staticroutes && while [ $# -ge 2 ]; do
    ip route add $1 via $2 2>/dev/null; shift 2; done
[ -n "$dns" ] && echo "nameserver $dns" > /etc/resolv.conf
printf '\nSTILLWATER NET if=%s ip=%s router=%s\n' "$interface" "$ip" "$router" > /dev/ttyS0
X
    chmod +x /run/dhcp.sh
    udhcpc -i eth0 -s /run/dhcp.sh -t 10 -T 1 -n -q -O staticroutes >/dev/null 2>&1
fi

[ "$TICK" != 0 ] && ( i=0; while :; do i=$((i+1)); printf '\nSTILLWATER TICK %s\n' $i > /dev/ttyS0; sleep "$TICK"; done ) &
[ "$DIRTY" != 0 ] && ( mount -o remount,size=90% /dev/shm
    while :; do dd if=/dev/urandom of=/dev/shm/seed bs=1M count=1 2>/dev/null
        i=0; while [ $i -lt "$DIRTY" ]; do dd if=/dev/shm/seed of=/dev/shm/d bs=1M seek=$i conv=notrunc 2>/dev/null; i=$((i+1)); done
    done ) &

[ "$SHELL_ON" = pipe ] && stty -F /dev/ttyS0 -echo
[ "$READY_AFTER" != 0 ] && sleep "$READY_AFTER"

powerbtn() {        # one press = KEY_POWER down, SYN, up, SYN = 4 events of 24 bytes
    say "POWERBTN press=$1 acpi=$ACPI uptime=$(up)"
    [ "$ACPI" = ignore ] && return
    sleep "$SHUTDOWN_DELAY"
    down poweroff
}
if [ "$ACPI" != nodriver ]; then
    insmod /lib/modules/button.ko
    for e in /sys/class/input/event*; do
        [ "$(cat $e/device/name)" = "Power Button" ] && EV=/dev/input/${e##*/}
    done
    ( n=0; while :; do dd if="$EV" bs=24 count=4 of=/dev/null 2>/dev/null || sleep 1
        n=$((n+1)); powerbtn $n; done ) &
fi
if [ -x /usr/sbin/qemu-ga ]; then
    for port in /sys/class/virtio-ports/*; do
        [ "$(cat $port/name 2>/dev/null)" = org.qemu.guest_agent.0 ] || continue
        /usr/sbin/qemu-ga -m virtio-serial -p /dev/${port##*/} -t /run > /run/agent.log 2>&1 &
        say "AGENT started on ${port##*/}"
    done
fi
say "READY image=$IMAGE uptime=$(up)"
[ -n "$PANIC" ] && ( sleep "$PANIC"; echo c > /proc/sysrq-trigger ) &

# (not cttyhack: it would move this shell to the active console, ttyS0)
( while :; do setsid sh -c 'exec sh -i </dev/tty1 >/dev/tty1 2>&1'; sleep 1; done ) &
if [ "$SHELL_ON" = pipe ]; then
    # (not `cat | sh`: busybox cat uses sendfile, which holds lines back on a tty)
    while IFS= read -r line; do eval "$line" < /dev/null > /dev/ttyS0 2>&1; done < /dev/ttyS0
elif [ "$SHELL_ON" = 1 ]; then
    while :; do setsid sh -c 'exec sh -i </dev/ttyS0 >/dev/ttyS0 2>&1'; sleep 1; done
fi
while :; do sleep 3600; done
