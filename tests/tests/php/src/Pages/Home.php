<?php
namespace Pages;

final class Home implements \Page
{
    public function answer(\Request $request): \Response
    {
        return new \Response(\View::render('home', ['title' => 'Home', 'name' => $request->query['name'] ?? 'visitor']));
    }
}
