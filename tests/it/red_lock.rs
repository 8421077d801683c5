//! smoke
use crate::support::{Server, eventually, ms, unique};
use redlatch::{Client, Config, Error, LossReason, RedLock};

#[test]
fn smoke_red() {
    let mut servers: Vec<_> = (0..5).map(|_| Server::start()).collect();
    let clients: Vec<_> = servers
        .iter()
        .map(|s| Client::open(Config::new(s.url()).lease(ms(1500))).unwrap())
        .collect();
    let name = unique("red");
    let lock = RedLock::new(&clients, &name).unwrap();
    let other: Vec<_> = servers
        .iter()
        .map(|s| Client::open(Config::new(s.url()).lease(ms(1500))).unwrap())
        .collect();
    let lock2 = RedLock::new(&other, &name).unwrap();
    let guard = lock.lock().unwrap();
    assert!(lock2.try_lock().unwrap().is_none());
    eventually("all", || guard.nodes_held() == 5);
    let again = lock.lock().unwrap();
    assert_eq!(again.hold_count(), 2);
    again.unlock().unwrap();
    assert!(lock2.is_locked().unwrap());
    println!("{:?}", lock2.remaining());
    servers[0].kill();
    servers[1].kill();
    eventually("3", || guard.nodes_held() == 3);
    assert!(guard.is_valid());
    assert!(lock2.try_lock().unwrap().is_none());
    servers[0].restart();
    servers[1].restart();
    eventually("5 again", || guard.nodes_held() == 5);
    guard.unlock().unwrap();
    let g2 = lock2.lock().unwrap();
    assert!(lock.try_lock_for(ms(100)).unwrap().is_none());
    drop(g2);
    let g = lock.lock().unwrap();
    for i in 0..3 {
        servers[i].kill();
    }
    let loss = g.lost().recv_timeout(ms(5000)).unwrap();
    println!("{loss:?}");
    drop(g);
    let t = std::time::Instant::now();
    let err = lock.try_lock_for(ms(700)).unwrap_err();
    println!("{err} {:?}", t.elapsed());
    for i in 0..3 {
        servers[i].restart();
    }
    let g = lock.lock().unwrap();
    eventually("5 again", || g.nodes_held() == 5);
    drop(g);
    eventually("empty", || servers.iter().all(|s| s.dbsize() == 0));
}

#[test]
fn smoke_multi() {
    let s = Server::start();
    let c = Client::open(s.url()).unwrap();
    let d = Client::open(s.url()).unwrap();
    let g = c.multi_lock(["b", "a", "b"]).lock().unwrap();
    println!("{g:?} {:?}", s.keys());
    assert!(d.reentrant_lock("a").try_lock().unwrap().is_none());
    assert!(matches!(d.multi_lock(["b", "c"]).try_lock(), Ok(None)));
    drop(g);
    let g = d.reentrant_lock("b").lock().unwrap();
    assert!(matches!(
        d.multi_lock(["b", "c"]).lock(),
        Err(Error::WouldDeadlock { .. })
    ));
    std::thread::scope(|sc| {
        let h = sc.spawn(|| {
            let g = c.multi_lock(["a", "b"]).lock().unwrap();
            g.unlock().unwrap();
        });
        std::thread::sleep(ms(100));
        drop(g);
        h.join().unwrap();
    });
    let s2 = Server::start();
    let e = Client::open(s2.url()).unwrap();
    let m = redlatch::MultiLock::new(vec![
        Box::new(e.fair_lock("x")),
        Box::new(c.reentrant_lock("x")),
        Box::new(c.mutex("y")),
    ]);
    let g = m.lock().unwrap();
    println!("{g:?} {:?} {:?}", s.keys(), s2.keys());
    assert!(d.reentrant_lock("y").try_lock().unwrap().is_none());
    assert!(d.reentrant_lock("y").force_unlock().unwrap());
    g.unlock().unwrap_err();
    let _ = LossReason::Forced;
    eventually("empty", || s.dbsize() == 0);
}

#[test]
fn smoke_slots() {
    let s = Server::start_with(&["--cluster-enabled", "yes"]);
    s.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("cluster ok", || {
        s.try_ask::<String>(&["SET", "x", "1"]).is_ok()
    });
    s.cli(&["DEL", "x"]);
    let c = Client::open(s.url()).unwrap();
    let lock = c.multi_lock(["a", "b", "c"]);
    assert!(!lock.is_locked().unwrap());
    let g = lock.lock().unwrap();
    println!("{g:?} {:?}", s.keys());
    assert_eq!(g.hold_count(), 1);
    assert!(lock.is_locked().unwrap());
    drop(g);
    let g = c.multi_lock(["{a}1", "{a}2"]).lock().unwrap();
    println!("{g:?} {:?}", s.keys());
    drop(g);
}
