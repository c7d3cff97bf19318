# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Part of stacks.sh: fio's engine for RDMA. It compares nothing, also where it is told to: a server
# with verify=md5 takes blocks of a client with verify=crc32c. So the octets are counted.
#
# Its Sends know no flow control but InfiniBand's "receiver not ready": here the client has four
# times as many of them under way as the server has receives.

# fio_pair VERB SIZE_OF_BLOCK BLOCKS DEPTH_OF_SERVER [OPTIONS OF THE SERVER] -- [OPTIONS OF THE
# CLIENT]
fio_pair() {
	local verb=$1 block=$2 total=$(($2 * $3)) depth=$4 server=()
	shift 4
	while [ "$1" != -- ]; do server+=("$1"); shift; done
	shift
	serve 60 fio --name=server --ioengine=rdma --port="$PORT" --rw=read --bs="$block" --size="$total" \
		--iodepth="$depth" "${server[@]}"
	# With a direction of "read" it would be a server.
	over_rdma "$([ "$verb" = read ] && echo 1000 || echo "$total")" call 60 fio --name=client --ioengine=rdma --hostname="$IP4_B" \
		--port="$PORT" --verb="$verb" --rw=write --bs="$block" --size="$total" --iodepth=16 \
		--iodepth_batch_complete=1 "$@"
	grep -q 'err= 0' "$CLIENT_OUT" || die "client: $(last_line "$CLIENT_OUT")"
	grep "io=" "$CLIENT_OUT"
}

fio_sizes() {
	local block
	for block in 512 4096 65536 1048576; do
		fio_pair "$1" "$block" 64 4 --
		PORT=$((PORT + 1))
	done
}

version fio fio
ends_up netns
name=$TYPE/fio
for verb in write read send; do
	try "$name/$verb" 100 fio_sizes "$verb"
done
try "$name/write_in_a_row" 300 in_a_row 10 fio_pair write 65536 64 16 --
ends_down
