//! Each rank puts a greeting into the next one's memory: `transom launch -n 2 -- target/release/examples/hello`.
#![allow(clippy::print_stdout, reason = "an example prints")]

use transom::{Team, Window};

fn main() -> transom::Result<()> {
    let team = Team::from_env()?;
    let window = Window::allocate(&team, 4096)?;
    let next = (team.rank() + 1) % team.size();
    window.put_signal(next, 0, format!("hello from {:4}", team.rank()).as_bytes(), 0, 1)?;

    window.signal(0)?.wait_at_least(1, team.timeout())?;
    let mut seen = [0; 15];
    window.local().read(0, &mut seen)?;
    println!("rank {} has: {}", team.rank(), String::from_utf8_lossy(&seen));
    window.close()
}
