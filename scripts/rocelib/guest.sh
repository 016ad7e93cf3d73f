#!/bin/bash
# The first process of a guest: sets up the RDMA device, runs the command, powers off. Not for use
# on a host. Arguments: the directory of results, the number of this machine.
results=$1
machine=$2
share=${results}/machine-${machine}
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

give_up() {
  echo "soft_roce: machine ${machine}: $*"
  echo 125 >"${share}/exit_code"
  sync
  busybox poweroff -f
}

mount -n -t proc proc /proc
mount -n -t sysfs sysfs /sys
# UML's kernel has mounted its own already.
mountpoint -q /dev || mount -n -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -n -t devpts devpts /dev/pts
for place in /run /mnt /dev/shm /tmp; do
  # What the host keeps there stays visible if the command or its results lie there.
  case ${results}/ in ${place}/*) continue ;; esac
  case $(cat "${results}/.directory")/ in ${place}/*) continue ;; esac
  mount -n -t tmpfs tmpfs "${place}" || give_up "no memory file system on ${place}"
done
if grep -q ' / hostfs ' /proc/mounts; then
  mount -n -t hostfs hostfs "${results}" -o "${results}" || give_up "no ${results}"
  # Output goes through a terminal of its own: what is written to a file arrives at the end only.
  exec >/dev/tty1 2>&1
  stty -onlcr -opost
else
  exec >>"${share}/output.log" 2>&1
fi
# Its settings: cut_when, cut_for_s, loss, machines, variables for the command.
source "${share}/settings.sh"
mkdir -p /run/home
export HOME=/run/home TMPDIR=/dev/shm

hostname "machine${machine}" 2>/dev/null || busybox hostname "machine${machine}"
ip link set lo up
address=10.77.0.$((machine + 1))
printf '%s\n' '127.0.0.1 localhost' '10.77.0.1 machine0' '10.77.0.2 machine1' >/run/hosts
mount -n --bind /run/hosts /etc/hosts
device=dummy0
if [[ ${machines} -gt 1 ]]; then device=eth0; fi
[[ -e /sys/class/net/${device} ]] || ip link add "${device}" type dummy || give_up "no ${device}"
# With frames this long the RDMA port's MTU is the largest there is, 4096.
ip link set "${device}" mtu 9000 up || give_up "${device} does not go up"
ip addr add "${address}/24" dev "${device}"
rdma link add rxe0 type rxe netdev "${device}" || give_up "rdma_rxe refused ${device}"
if [[ -n ${loss} ]]; then
  tc qdisc add dev "${device}" root netem loss "${loss}" || give_up "no packet loss on ${device}"
fi
ulimit -l unlimited

export SOFT_ROCE_MACHINE=${machine} SOFT_ROCE_MACHINES=${machines} SOFT_ROCE_RESULTS=${results}
export SOFT_ROCE_ADDRESS=${address} SOFT_ROCE_PEER=10.77.0.$((machines - machine))
[[ ${machines} -gt 1 ]] || export SOFT_ROCE_PEER=${address}

wait_for() {
  if [[ $1 == *[!0-9.]* ]]; then
    while [[ ! -e ${results}/$1 ]]; do sleep 0.2; done
  else
    sleep "$1"
  fi
}

cd "$(cat "${results}/.directory")" || give_up "no directory $(cat "${results}/.directory")"
: >"${share}/ready"
# Machines start their commands together.
while [[ ! -e ${results}/.start ]]; do sleep 0.05; done
if [[ -n ${cut_when} && ${machine} -eq 1 ]]; then
  (
    wait_for "${cut_when}"
    echo "soft_roce: the link is cut for ${cut_for_s} s"
    ip link set "${device}" down
    sleep "${cut_for_s}"
    ip link set "${device}" up
    echo "soft_roce: the link is back"
  ) &
fi
/bin/bash "${share}/command.sh" </dev/null
code=$?
echo "${code}" >"${share}/exit_code.tmp"
mv "${share}/exit_code.tmp" "${share}/exit_code"
sync
busybox poweroff -f
