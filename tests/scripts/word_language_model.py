"""An LSTM language model on words, with its hidden state carried along and its own SGD."""

import argparse
import math
import time

import torch
from torch import nn


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout=0.5):
        super().__init__()
        self.ntoken = ntoken
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        self.nhid, self.nlayers = nhid, nlayers
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(input)), hidden)
        decoded = self.decoder(self.drop(output)).view(-1, self.ntoken)
        return nn.functional.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        shape = self.nlayers, bsz, self.nhid
        return weight.new_zeros(*shape), weight.new_zeros(*shape)


def batchify(data, bsz, device):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous().to(device)


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


def get_batch(source, i, bptt):
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].view(-1)


def evaluate(model, source, criterion, bptt):
    model.eval()
    total_loss = 0.0
    hidden = model.init_hidden(10)
    with torch.no_grad():
        for i in range(0, source.size(0) - 1, bptt):
            data, targets = get_batch(source, i, bptt)
            output, hidden = model(data, hidden)
            hidden = repackage_hidden(hidden)
            total_loss += len(data) * criterion(output, targets).item()
    return total_loss / (len(source) - 1)


def train(args, model, source, criterion, optimizer, epoch):
    model.train()
    total_loss = 0.0
    start_time = time.time()
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, source.size(0) - 1, args.bptt)):
        data, targets = get_batch(source, i, args.bptt)
        optimizer.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        total_loss += loss.item()
        if batch % args.log_interval == 0 and batch > 0:
            ms = (time.time() - start_time) * 1000 / args.log_interval
            print(f"| epoch {epoch} | {batch} batches | ms/batch {ms:5.2f} | {total_loss:5.2f}")
            total_loss, start_time = 0.0, time.time()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--emsize", type=int, default=200)
    parser.add_argument("--nhid", type=int, default=200)
    parser.add_argument("--nlayers", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=20)
    parser.add_argument("--bptt", type=int, default=35)
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--log-interval", type=int, default=200)
    parser.add_argument("--save", default="model.pt")
    args = parser.parse_args()
    torch.manual_seed(1111)
    device = torch.device("cuda")
    corpus = torch.randint(0, 10000, (100_000,))
    train_data = batchify(corpus, args.batch_size, device)
    val_data = batchify(corpus[:10000], 10, device)
    model = RNNModel(10000, args.emsize, args.nhid, args.nlayers).to(device)
    criterion = nn.NLLLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=20.0)
    best = None
    for epoch in range(1, 41):
        train(args, model, train_data, criterion, optimizer, epoch)
        val_loss = evaluate(model, val_data, criterion, args.bptt)
        print(f"end of epoch {epoch}: ppl {math.exp(val_loss):8.2f}")
        if not best or val_loss < best:
            with open(args.save, "wb") as f:
                torch.save(model, f)
            best = val_loss


if __name__ == "__main__":
    main()
