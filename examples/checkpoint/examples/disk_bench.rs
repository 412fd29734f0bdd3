//! Scratch.
#![allow(clippy::print_stdout, reason = "x")]
use transom_checkpoint::bench::*;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let size: usize = args[2].parse::<usize>().unwrap() << 20;
    let turns = args[3].parse().unwrap();
    let what = &args[4];
    let context = transom::Context::builder().transports("local").build().unwrap();
    let mut bench = Bench::new(&context, &args[1], size, 8).unwrap();
    let show = |name: &str, b: Beside| {
        println!("{name}: ours {:.2} raw {:.2} ratio {:.3}", b.ours() / 1e9, b.raw() / 1e9, b.ratio());
        println!(
            "  {:.2?}\n  {:.2?}",
            b.ours.iter().map(|x| x / 1e9).collect::<Vec<_>>(),
            b.raw.iter().map(|x| x / 1e9).collect::<Vec<_>>()
        );
    };
    if what.contains('d') {
        show("durable", bench.durable(turns).unwrap());
    }
    if what.contains('w') {
        show("warm", bench.load(turns, false).unwrap());
    }
    if what.contains('c') {
        show("cold", bench.load(turns, true).unwrap());
    }
}
