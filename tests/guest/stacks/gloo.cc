// SPDX-License-Identifier: GPL-2.0
/*
 * Collective operations of gloo over its transport for verbs, with verified data: gloo RANKS DEVICE
 * DIR, where DIR is an empty directory by which the ranks find each other. Each rank is a process.
 *
 * The transport connects its queue pairs by ibv_modify_qp, with GID 0, tells the other end its
 * regions by Sends with Immediate, and moves data by Writes with Immediate.
 */
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include <gloo/allgather_ring.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

static int rank, size;

static void check(bool right, const char *what, int count, int at)
{
	if (right)
		return;
	fprintf(stderr, "rank %d: %s of %d: element %d is wrong\n", rank, what, count, at);
	exit(1);
}

/* What a rank has at the beginning. */
static int64_t element(int of, int at)
{
	return int64_t(of + 1) * 1000003 + at;
}

static std::vector<int64_t> mine(int count)
{
	std::vector<int64_t> data(count);

	for (int i = 0; i < count; i++)
		data[i] = element(rank, i);
	return data;
}

/*
 * Waits until all that this end has posted has completed, since a buffer that is destroyed before
 * aborts the program. Completions of a queue pair come in order.
 */
class Flush {
public:
	explicit Flush(std::shared_ptr<gloo::Context> context)
	{
		auto slot = context->nextSlot();

		for (int i = 0; i < size; i++)
			if (i != rank) {
				auto &pair = context->getPair(i);

				send.push_back(pair->createSendBuffer(slot, &data, sizeof(data)));
				recv.push_back(pair->createRecvBuffer(slot, &place, sizeof(place)));
			}
	}

	void run()
	{
		for (auto &buffer : send)
			buffer->send();
		for (auto &buffer : recv)
			buffer->waitRecv();
		for (auto &buffer : send)
			buffer->waitSend();
	}

private:
	int data = 0, place = 0;
	std::vector<std::unique_ptr<gloo::transport::Buffer>> send, recv;
};

static std::unique_ptr<Flush> flush;

template <class Algorithm>
static void allreduce(std::shared_ptr<gloo::Context> context, const char *name, int count)
{
	auto data = mine(count);
	Algorithm algorithm(context, std::vector<int64_t *>{data.data()}, count);

	/* The algorithm reduces what it has reduced before. */
	int64_t factor = 1;
	for (int round = 0; round < 3; round++) {
		algorithm.run();
		for (int i = 0; i < count; i++) {
			int64_t sum = 0;

			for (int of = 0; of < size; of++)
				sum += element(of, i);
			check(data[i] == sum * factor, name, count, i);
		}
		factor *= size;
	}
	flush->run();
}

static void run(std::shared_ptr<gloo::Context> context)
{
	for (int count : {1, 100, 10000, 100000}) {
		allreduce<gloo::AllreduceRing<int64_t>>(context, "AllreduceRing", count);
		allreduce<gloo::AllreduceRingChunked<int64_t>>(context, "AllreduceRingChunked", count);
		allreduce<gloo::AllreduceHalvingDoubling<int64_t>>(context, "AllreduceHalvingDoubling", count);

		for (int root = 0; root < size; root++) {
			auto data = mine(count);
			gloo::BroadcastOneToAll<int64_t> broadcast(context, {data.data()}, count, root);

			broadcast.run();
			for (int i = 0; i < count; i++)
				check(data[i] == element(root, i), "BroadcastOneToAll", count, i);
			flush->run();
		}

		auto data = mine(count);
		std::vector<int64_t> all(size_t(count) * size);
		gloo::AllgatherRing<int64_t> gather(context, {data.data()}, all.data(), count);

		gather.run();
		for (int i = 0; i < count * size; i++)
			check(all[i] == element(i / count, i % count), "AllgatherRing", count, i);
		flush->run();
		if (rank == 0)
			printf("%d elements on %d ranks\n", count, size);
	}
	gloo::BarrierAllToAll barrier(context);

	barrier.run();
	flush->run();
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	size = atoi(argv[1]);
	for (rank = 0; rank < size; rank++)
		if (!fork())
			break;
	if (rank == size) {
		int status, worst = 0;

		while (wait(&status) > 0)
			worst = worst ?: status;
		return worst ? 1 : 0;
	}

	gloo::transport::ibverbs::attr attr;
	attr.name = argv[2];
	attr.port = 1;
	attr.index = 0;
	auto device = gloo::transport::ibverbs::CreateDevice(attr);
	gloo::rendezvous::FileStore store(argv[3]);
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);

	context->connectFullMesh(store, device);
	flush = std::make_unique<Flush>(context);
	run(context);
	/*
	 * Destroys nothing: the thread that has just told of the last receive still uses its pair, and
	 * gloo does not wait for it.
	 */
	fflush(stdout);
	_exit(0);
}
