"""What the run says about itself."""
import math

from lm.utils.timers import pop_ms


class Monitor:
    """Counts what happened and writes one line per iteration."""

    def __init__(self, args):
        self.args = args
        self.skipped = self.nans = self.samples = 0

    def training_log(self, iteration, report, norm, lr, loss_scale, skipped):
        """One Megatron-style line, rank 0 only."""
        args = self.args
        self.samples += args.global_batch_size
        self.skipped += int(skipped)
        self.nans += int(math.isnan(report["lm loss"]))
        if args.rank:
            return
        line = f" iteration {iteration:8d}/{args.train_iters:8d} |"
        line += f" consumed samples: {self.samples:12d} |"
        line += f" elapsed time per iteration (ms): {pop_ms('iteration'):.1f} |"
        line += f" learning rate: {lr:.6E} |"
        line += f" global batch size: {args.global_batch_size:5d} |"
        for key, value in report.items():
            line += f" {key}: {value:.10E} |"
        line += f" loss scale: {loss_scale:.1f} |"
        line += f" grad norm: {norm:.10f} |"
        line += f" number of skipped iterations: {self.skipped:3d} |"
        line += f" number of nan iterations: {self.nans:3d} |"
        print(line, flush=True)

    def validation_log(self, iteration, value):
        """The line of an evaluation, rank 0 only."""
        if self.args.rank == 0:
            print(f" validation loss at iteration {iteration} | lm loss value: {value:.10E} |", flush=True)
