//! What the engine's thread publishes of itself.

use super::*;
use crate::heartbeat::Activity;

#[test]
fn each_layer_of_a_pass_is_a_beat() {
    let world = world(Level::Off, None);
    let idle = |world: &World| {
        let begun = Instant::now();
        while world.engine.pulse().activity != Activity::Idle {
            assert!(begun.elapsed() < Duration::from_secs(60), "it never rests");
            thread::sleep(Duration::from_millis(1));
        }
        world.engine.pulse()
    };
    let before = idle(&world);
    assert!(!before.has_work);
    let (tell, activity) = mpsc::channel();
    let (go_on, gone_on) = mpsc::channel::<()>();
    let finished = world.submit(world.request(48), move |_| {
        // Held once, after the first pass.
        if tell.send(()).is_ok() {
            let _ = gone_on.recv();
        }
    });
    activity.recv().unwrap();
    let held = world.engine.pulse();
    assert_eq!(held.activity, Activity::Passes);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(
        world.engine.pulse(),
        held,
        "a sink that blocks is no progress"
    );
    drop((activity, go_on));
    let passes = finished.recv().unwrap().unwrap().passes as u64;
    let beats = idle(&world).beats - before.beats;
    let layers = world.model.info.layers as u64;
    assert!(beats > passes * layers, "{beats} beats of {passes} passes");
}
